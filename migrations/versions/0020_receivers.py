"""receivers: the replicas say in their rows which webhooks they want, not in settings of their connections

Revision: 0020, after: 0019
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# A pooler gives each transaction another connection, so a setting of a connection is lost. Older versions that still run
# make it, and are understood.
FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION keep_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('turnstream.webhook', true) = 'on'
            OR EXISTS (SELECT FROM replicas WHERE 'ended' = ANY(webhooks))
        THEN
            INSERT INTO webhooks (turn_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
        END IF;
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE OR REPLACE FUNCTION keep_waiting_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('turnstream.waiting_webhook', true) = 'on'
            OR EXISTS (SELECT FROM replicas WHERE 'waiting' = ANY(webhooks))
        THEN
            INSERT INTO waiting_webhooks (turn_id, asked, calls)
            SELECT NEW.id, NEW.asked, json_agg(
                json_build_object('tool_use_id', tool_use_id, 'name', name, 'type', kind, 'expires_at', expires_at)
                ORDER BY round, tool_use_id
            )
            FROM asks WHERE turn_id = NEW.id AND answer IS NULL HAVING count(*) > 0
            ON CONFLICT DO NOTHING;
        END IF;
        RETURN NULL;
    END
    $$
    """,
)
OLD_FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION keep_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO webhooks (turn_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE OR REPLACE FUNCTION keep_waiting_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO waiting_webhooks (turn_id, asked, calls)
        SELECT NEW.id, NEW.asked, json_agg(
            json_build_object('tool_use_id', tool_use_id, 'name', name, 'type', kind, 'expires_at', expires_at)
            ORDER BY round, tool_use_id
        )
        FROM asks WHERE turn_id = NEW.id AND answer IS NULL HAVING count(*) > 0
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END
    $$
    """,
)
TRIGGERS = (
    ("turn_ended", "status", "OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL", "webhook", "keep_webhook"),
    ("turn_waits", "asked", "NEW.asked > OLD.asked", "waiting_webhook", "keep_waiting_webhook"),
)


def upgrade() -> None:
    kinds = sa.Column("webhooks", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False)
    op.add_column("replicas", kinds)
    for function in FUNCTIONS:
        op.execute(function)
    for name, column, condition, _, function in TRIGGERS:
        _replace_trigger(name, column, condition, function)


def downgrade() -> None:
    for name, column, condition, setting, function in TRIGGERS:
        wanted = f"current_setting('turnstream.{setting}', true) = 'on'"
        _replace_trigger(name, column, f"{condition} AND {wanted}", function)
    for function in OLD_FUNCTIONS:
        op.execute(function)
    op.drop_column("replicas", "webhooks")


def _replace_trigger(name: str, column: str, condition: str, function: str) -> None:
    op.execute(f"DROP TRIGGER {name} ON turns")
    op.execute(
        f"CREATE TRIGGER {name} AFTER UPDATE OF {column} ON turns FOR EACH ROW WHEN ({condition})"
        f" EXECUTE FUNCTION {function}()"
    )

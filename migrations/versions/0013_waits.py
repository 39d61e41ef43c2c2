"""waits: the calls of an owner that wait for a person, and the webhooks that report them

Revision: 0013, after: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# `asked` grows with every ask. Asks that a grant has answered let nobody wait. A table beside `webhooks`: an older
# version that still runs would deliver these rows as ends of turns.
FUNCTION = """
CREATE FUNCTION keep_waiting_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""
TRIGGER = """
CREATE TRIGGER turn_waits AFTER UPDATE OF asked ON turns FOR EACH ROW
WHEN (NEW.asked > OLD.asked AND current_setting('turnstream.waiting_webhook', true) = 'on')
EXECUTE FUNCTION keep_waiting_webhook()
"""


def upgrade() -> None:
    op.create_table(
        "waiting_webhooks",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("calls", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("given_up_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "num_nonnulls(due_at, delivered_at, given_up_at) = 1", name=op.f("ck_waiting_webhooks_one_state")
        ),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.id"], name=op.f("fk_waiting_webhooks_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn_id", "asked", name=op.f("pk_waiting_webhooks")),
    )
    op.create_index(
        "ix_waiting_webhooks_due",
        "waiting_webhooks",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index("ix_asks_open", "asks", ["turn_id"], unique=False, postgresql_where=sa.text("answer IS NULL"))
    op.execute(FUNCTION)
    op.execute(TRIGGER)


def downgrade() -> None:
    op.execute("DROP TRIGGER turn_waits ON turns")
    op.execute("DROP FUNCTION keep_waiting_webhook()")
    op.drop_index("ix_asks_open", table_name="asks", postgresql_where=sa.text("answer IS NULL"))
    op.drop_index(
        "ix_waiting_webhooks_due", table_name="waiting_webhooks", postgresql_where=sa.text("due_at IS NOT NULL")
    )
    op.drop_table("waiting_webhooks")

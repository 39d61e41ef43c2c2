"""webhooks: the ends of turns that an operator's server is told of

Revision: 0003, after: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# One place for all ways to end a turn. A connection says by `turnstream.webhook` whether anybody wants to know.
FUNCTION = """
CREATE FUNCTION keep_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhooks (turn_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$
"""
TRIGGER = """
CREATE TRIGGER turn_ended AFTER UPDATE OF status ON turns FOR EACH ROW
WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND current_setting('turnstream.webhook', true) = 'on')
EXECUTE FUNCTION keep_webhook()
"""


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("given_up_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("num_nonnulls(due_at, delivered_at, given_up_at) = 1", name=op.f("ck_webhooks_one_state")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_webhooks_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_webhooks")),
    )
    op.create_index(
        "ix_webhooks_due", "webhooks", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL")
    )
    op.execute(FUNCTION)
    op.execute(TRIGGER)


def downgrade() -> None:
    op.execute("DROP TRIGGER turn_ended ON turns")
    op.execute("DROP FUNCTION keep_webhook()")
    op.drop_index("ix_webhooks_due", table_name="webhooks", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_table("webhooks")

"""the feed of an owner: chats that were deleted, and an index of open turns

Revision: 0006, after: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# A trigger, so that a deletion by an older version that still runs, or by hand, reaches the feed too.
FUNCTION = """
CREATE FUNCTION keep_deleted_chat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_chats (owner, chat_id, deleted_at) VALUES (OLD.owner, OLD.id, clock_timestamp())
    ON CONFLICT (owner, chat_id) DO UPDATE SET deleted_at = EXCLUDED.deleted_at;
    RETURN NULL;
END
$$
"""
TRIGGER = """
CREATE TRIGGER chat_deleted AFTER DELETE ON chats FOR EACH ROW EXECUTE FUNCTION keep_deleted_chat()
"""
OPEN = "status IN ('queued', 'running', 'waiting')"


def upgrade() -> None:
    op.create_table(
        "deleted_chats",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", "chat_id", name=op.f("pk_deleted_chats")),
    )
    op.create_index(op.f("ix_deleted_chats_owner_deleted_at"), "deleted_chats", ["owner", "deleted_at"], unique=False)
    op.execute(FUNCTION)
    op.execute(TRIGGER)
    op.create_index("ix_turns_open", "turns", ["chat_id"], unique=False, postgresql_where=sa.text(OPEN))


def downgrade() -> None:
    op.drop_index("ix_turns_open", table_name="turns", postgresql_where=sa.text(OPEN))
    op.execute("DROP TRIGGER chat_deleted ON chats")
    op.execute("DROP FUNCTION keep_deleted_chat()")
    op.drop_index(op.f("ix_deleted_chats_owner_deleted_at"), table_name="deleted_chats")
    op.drop_table("deleted_chats")

"""branches: turns that were deleted from a chat, and the origin of turns that were copied by a fork

Revision: 0009, after: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("forked_from", sa.Uuid(), nullable=True))
    op.create_table(
        "deleted_turns",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_deleted_turns_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_deleted_turns")),
    )
    op.create_index(
        op.f("ix_deleted_turns_chat_id_deleted_at"), "deleted_turns", ["chat_id", "deleted_at"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_deleted_turns_chat_id_deleted_at"), table_name="deleted_turns")
    op.drop_table("deleted_turns")
    op.drop_column("turns", "forked_from")

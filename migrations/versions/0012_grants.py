"""grants: approvals that are remembered for a chat

Revision: 0012, after: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("when", sa.JSON(), nullable=True),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_grants_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index(
        "ix_grants_chat_id", "grants", ["chat_id"], unique=False, postgresql_where=sa.text("revoked_at IS NULL")
    )
    op.add_column("asks", sa.Column("tool_digest", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("asks", "tool_digest")
    op.drop_index("ix_grants_chat_id", table_name="grants", postgresql_where=sa.text("revoked_at IS NULL"))
    op.drop_table("grants")

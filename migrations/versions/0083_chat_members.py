"""members of chats

Revision: 0083, after: 0082
"""

import sqlalchemy as sa
from alembic import op

revision = "0083"
down_revision = "0082"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "chat_members",
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("role IN ('read', 'write', 'approve')", name=op.f("ck_chat_members_role")),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_chat_members_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("chat_id", "member", name=op.f("pk_chat_members")),
    )
    op.create_index(op.f("ix_chat_members_member"), "chat_members", ["member"])


def downgrade() -> None:
    op.drop_table("chat_members")

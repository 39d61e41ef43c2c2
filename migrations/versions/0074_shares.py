"""shares: links that show a chat to people without a credential

Revision: 0074, after: 0073
"""

import sqlalchemy as sa
from alembic import op

revision = "0074"
down_revision = "0073"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("results", sa.Boolean(), nullable=False),
        sa.Column("files", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("live = (turn_id IS NULL)", name=op.f("ck_shares_end")),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_shares_chat_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_shares_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
    )
    op.create_index(op.f("ix_shares_digest"), "shares", ["digest"], unique=True)
    op.create_index(op.f("ix_shares_chat_id"), "shares", ["chat_id"])
    op.create_index(op.f("ix_shares_turn_id"), "shares", ["turn_id"])


def downgrade() -> None:
    op.drop_table("shares")

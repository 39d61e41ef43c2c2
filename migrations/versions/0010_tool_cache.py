"""a cache of the answers of read-only tools

Revision: 0010, after: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tool_cache",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("client_data", sa.JSON(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("octet_length(key) = 32", name=op.f("ck_tool_cache_key_is_sha256")),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_tool_cache")),
    )
    op.create_index(op.f("ix_tool_cache_expires_at"), "tool_cache", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_table("tool_cache")

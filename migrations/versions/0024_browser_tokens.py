"""browser tokens: short-lived ones that another credential was exchanged for

Revision: 0024, after: 0023
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "browser_tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("chat_id", sa.Uuid(), nullable=True),
        sa.Column("turn_id", sa.Uuid(), nullable=True),
        sa.Column("token_id", sa.Uuid(), nullable=True),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("ck_browser_tokens_hash_is_sha256")),
        sa.CheckConstraint("turn_id IS NULL OR chat_id IS NOT NULL", name=op.f("ck_browser_tokens_turn_has_chat")),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_browser_tokens_token_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_browser_tokens")),
    )
    op.create_index(op.f("ix_browser_tokens_expires_at"), "browser_tokens", ["expires_at"], unique=False)
    op.create_index(op.f("ix_browser_tokens_token_id"), "browser_tokens", ["token_id"], unique=False)


def downgrade() -> None:
    op.drop_table("browser_tokens")

"""the ledger of model calls, and what a round cost when it was made

Revision: 0017, after: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("cost", sa.Numeric(), nullable=True))
    op.create_table(
        "charges",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=True),
        sa.Column("charged_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('round', 'summary', 'title')", name=op.f("ck_charges_kind")),
        sa.PrimaryKeyConstraint("turn_id", "call", name=op.f("pk_charges")),
    )
    op.create_index("ix_charges_owner_charged_at", "charges", ["owner", "charged_at"])
    op.create_index("ix_charges_charged_at", "charges", ["charged_at"], postgresql_using="brin")


def downgrade() -> None:
    op.drop_table("charges")
    op.drop_column("rounds", "cost")

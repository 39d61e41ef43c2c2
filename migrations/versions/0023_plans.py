"""accounts and reservations: what owners with a plan have used

Revision: 0023, after: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_PERIODS = ("minute", "day", "month")
_RATES = [f"{measure}_per_{period}" for measure in ("requests", "calls", "tokens", "cost") for period in _PERIODS]


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("owner", sa.Text(), nullable=False),
        *(sa.Column(period, sa.DateTime(timezone=True), nullable=False) for period in _PERIODS),
        *(sa.Column(rate, sa.Numeric(), server_default=sa.text("0"), nullable=False) for rate in _RATES),
        sa.Column("running_turns", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_accounts")),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False),
        sa.Column("reserved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
    )
    op.create_index(op.f("ix_reservations_turn_id"), "reservations", ["turn_id"])
    op.create_index(op.f("ix_reservations_owner"), "reservations", ["owner"])


def downgrade() -> None:
    op.drop_table("reservations")
    op.drop_table("accounts")

"""rates: what is left of the rate limits of each provider's keys, and the shares of replicas

Revision: 0082, after: 0081
"""

import sqlalchemy as sa
from alembic import op

revision = "0082"
down_revision = "0081"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "provider_rates",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_provider_rates")),
    )


def downgrade() -> None:
    op.drop_table("provider_rates")

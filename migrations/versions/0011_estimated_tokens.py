"""the estimated output of a round that was cut off

Revision: 0011, after: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("estimated_tokens", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("rounds", "estimated_tokens")

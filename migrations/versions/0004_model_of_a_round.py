"""the model of a round, which may be another than the turn's when that is down

Revision: 0004, after: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("model", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("rounds", "model")

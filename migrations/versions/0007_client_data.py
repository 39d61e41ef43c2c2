"""data for clients beside the result of a tool

Revision: 0007, after: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("client_data", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("blocks", "client_data")

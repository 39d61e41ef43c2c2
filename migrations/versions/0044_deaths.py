"""deaths: turns that were running when processes died

Revision: 0044, after: 0043

A takeover counts for each turn the deaths of processes that it may have caused. If the replica had begun turns apart,
because of earlier deaths, these are the `suspects` in its row. Replicas of the version before count `recoveries` only.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("deaths", sa.SmallInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("replicas", sa.Column("suspects", postgresql.ARRAY(sa.Uuid()), nullable=True))


def downgrade() -> None:
    op.drop_column("replicas", "suspects")
    op.drop_column("turns", "deaths")

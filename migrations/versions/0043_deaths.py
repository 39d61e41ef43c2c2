"""deaths: turns that were running when a process died

Revision: 0043, after: 0041

A takeover counts the deaths of a turn, and notes how much text the turn had. Replicas of the version before count
`recoveries` only; such a death is not among the `deaths`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("deaths", sa.SmallInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("turns", sa.Column("size_at_death", sa.BigInteger(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    op.drop_column("turns", "size_at_death")
    op.drop_column("turns", "deaths")

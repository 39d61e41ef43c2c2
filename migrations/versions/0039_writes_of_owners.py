"""writes of owners: the requests that change rows and ask for no answer

Revision: 0039, after: 0038

A version that still runs does not count them. Where it begins a period, they are counted from the period before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

RATES = ("writes_per_minute", "writes_per_day", "writes_per_month")


def upgrade() -> None:
    for rate in RATES:
        op.add_column("accounts", sa.Column(rate, sa.Numeric(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    for rate in RATES:
        op.drop_column("accounts", rate)

"""requests of killed calls: a reservation has what its request is charged where its process dies before the reply begins

Revision: 0037, after: 0036

Rows of a version that still runs have none of it, and are given back as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

COLUMNS = (
    sa.Column("chat_id", sa.Uuid()),
    sa.Column("kind", sa.Text()),
    sa.Column("model", sa.Text()),
    sa.Column("request_tokens", sa.BigInteger()),
    sa.Column("request_cost", sa.Numeric()),
)


def upgrade() -> None:
    for column in COLUMNS:
        op.add_column("reservations", column)


def downgrade() -> None:
    for column in COLUMNS:
        op.drop_column("reservations", column.name)

"""roots of charges: charges and reservations name the turn whose budgets they count against

Revision: 0060, after: 0059
"""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("charges", sa.Column("root_turn", sa.Uuid(), nullable=True))
    op.add_column("reservations", sa.Column("root_turn", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column("reservations", "root_turn")
    op.drop_column("charges", "root_turn")

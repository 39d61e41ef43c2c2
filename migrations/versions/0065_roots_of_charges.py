"""roots of charges: charges and reservations name the turn whose budgets they count against

Revision: 0065, after: 0064
"""

import sqlalchemy as sa
from alembic import op

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("charges", sa.Column("root_turn", sa.Uuid(), nullable=True))
    op.add_column("reservations", sa.Column("root_turn", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column("reservations", "root_turn")
    op.drop_column("charges", "root_turn")

"""index of roots: the charges of a family by its root

Revision: 0066, after: 0065
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_charges_root_turn", "charges", ["root_turn"], postgresql_where=sa.text("root_turn IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_charges_root_turn", table_name="charges")

"""index of tool sets: the turns that have one

Revision: 0049, after: 0048
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_turns_tool_set", "turns", ["tool_set"], postgresql_where=sa.text("tool_set IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_turns_tool_set", table_name="turns")

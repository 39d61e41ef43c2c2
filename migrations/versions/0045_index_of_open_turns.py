"""index of open turns: those of an owner, found by status

Revision: 0045, after: 0044
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_turns_owners",
        "turns",
        ["status", "queue_owner", "created_at", "id"],
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )


def downgrade() -> None:
    op.drop_index("ix_turns_owners", table_name="turns")

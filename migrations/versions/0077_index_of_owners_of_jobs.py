"""index of the jobs of an owner that are not settled, by their tool and due time

Revision: 0077, after: 0076
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0077"
down_revision = "0076"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_jobs_owners", "jobs", ["queue_owner", "name", "due_at"], postgresql_where=sa.text("settled_at IS NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_owners", table_name="jobs")

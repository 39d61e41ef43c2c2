"""index of the jobs that a replica runs

Revision: 0079, after: 0078
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0079"
down_revision = "0078"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently("ix_jobs_runners", "jobs", ["replica"], postgresql_where=sa.text("replica IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_jobs_runners", table_name="jobs")

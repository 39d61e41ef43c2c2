"""index of the jobs that are to report and are not settled: those of a cancelled turn are discarded

Revision: 0080, after: 0079
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0080"
down_revision = "0079"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_jobs_reporting", "jobs", ["turn_id"], postgresql_where=sa.text("reports AND settled_at IS NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_reporting", table_name="jobs")

"""index of reports: outcomes of jobs that are to be delivered

Revision: 0072, after: 0071
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_jobs_undelivered",
        "jobs",
        ["settled_at"],
        postgresql_where=sa.text("reports AND settled_at IS NOT NULL AND delivery IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_undelivered", table_name="jobs")

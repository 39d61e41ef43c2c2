"""index of the deadlines of jobs that are not settled

Revision: 0078, after: 0077
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0078"
down_revision = "0077"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently("ix_jobs_deadlines", "jobs", ["deadline"], postgresql_where=sa.text("settled_at IS NULL"))


def downgrade() -> None:
    op.drop_index("ix_jobs_deadlines", table_name="jobs")

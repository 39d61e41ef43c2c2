"""questions of jobs: the attempt that has detached with one, whose answer the next runs get

Revision: 0073, after: 0072

A trigger wakes the job at the answer, and approvers see the question: their functions are in files.
"""

import sqlalchemy as sa
from alembic import op

revision = "0073"
down_revision = "0072"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("asked_in", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS question_answered ON asks")
    op.execute("DROP FUNCTION IF EXISTS wake_asking_job")
    op.drop_column("jobs", "asked_in")

"""stopped jobs: handles of calls that were stopped while they continued elsewhere, until their tools have stopped them

Revision: 0081, after: 0080

Triggers add the rows; their functions are in files.
"""

import sqlalchemy as sa
from alembic import op

revision = "0081"
down_revision = "0080"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stopped_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("handle", sa.JSON(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stopped_jobs")),
    )
    op.create_index(op.f("ix_stopped_jobs_owner"), "stopped_jobs", ["owner"])
    op.create_index(op.f("ix_stopped_jobs_due_at"), "stopped_jobs", ["due_at"])


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS job_stopped ON jobs")
    op.execute("DROP TRIGGER IF EXISTS job_deleted ON jobs")
    op.execute("DROP FUNCTION IF EXISTS keep_stopped_job")
    op.drop_table("stopped_jobs")

"""jobs: calls that run apart from their turn

Revision: 0052, after: 0051

Replicas of the version before do not claim a turn that has jobs: `runs_jobs` is false for them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("handle", sa.JSON(), nullable=True),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("replica", sa.Uuid(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checkpoint", sa.JSON(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('tool')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint("outcome IS NULL OR settled_at IS NOT NULL", name=op.f("ck_jobs_outcome_has_time")),
        sa.CheckConstraint("replica IS NULL OR settled_at IS NULL", name=op.f("ck_jobs_over_has_no_runner")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_jobs_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("turn_id", "round", "tool_use_id", name=op.f("uq_jobs_turn_id_round_tool_use_id")),
    )
    op.create_index("ix_jobs_unsettled", "jobs", ["due_at"], postgresql_where=sa.text("settled_at IS NULL"))
    op.execute(
        "ALTER TABLE jobs SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02,"
        " autovacuum_analyze_scale_factor = 0.02)"
    )
    op.add_column("replicas", sa.Column("runs_jobs", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("replicas", "runs_jobs")
    op.drop_table("jobs")

"""schedules: messages that the server posts at times

Revision: 0058, after: 0057
"""

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("cron", sa.Text(), nullable=True),
        sa.Column("every", sa.Float(), nullable=True),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("missed", sa.Text(), nullable=False),
        sa.Column("grace", sa.Float(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("num_nonnulls(cron, every) = 1", name=op.f("ck_schedules_one_rule")),
        sa.CheckConstraint("missed IN ('run_once', 'skip', 'report')", name=op.f("ck_schedules_missed")),
        sa.CheckConstraint("paused IN ('person', 'failures')", name=op.f("ck_schedules_paused")),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_schedules_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_owner"), "schedules", ["owner"])
    op.create_index(op.f("ix_schedules_chat_id"), "schedules", ["chat_id"])
    op.create_index("ix_schedules_due", "schedules", ["next_at"], postgresql_where=sa.text("paused IS NULL"))
    op.create_table(
        "schedule_runs",
        sa.Column("schedule_id", sa.Uuid(), nullable=False),
        sa.Column("tick", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=True),
        sa.Column("chat_id", sa.Uuid(), nullable=True),
        sa.Column("missed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'started', 'ended', 'failed', 'missed')", name=op.f("ck_schedule_runs_state")
        ),
        sa.CheckConstraint(
            "(state IN ('started', 'ended')) <= (turn_id IS NOT NULL)", name=op.f("ck_schedule_runs_started_has_turn")
        ),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("schedule_id", "tick", name=op.f("pk_schedule_runs")),
    )
    op.create_index(op.f("ix_schedule_runs_owner"), "schedule_runs", ["owner"])
    op.create_index(
        "ix_schedule_runs_pending", "schedule_runs", ["due_at"], postgresql_where=sa.text("state = 'pending'")
    )
    op.create_index(
        "ix_schedule_runs_started", "schedule_runs", ["tick"], postgresql_where=sa.text("state = 'started'")
    )
    for table in ("schedules", "schedule_runs"):
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_insert_scale_factor = 0.02,"
            " autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)"
        )


def downgrade() -> None:
    op.drop_table("schedule_runs")
    op.drop_table("schedules")

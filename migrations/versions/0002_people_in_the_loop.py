"""people in the loop: asks, steers, and what was noted on a result

Revision: 0002, after: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "asks",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(answer IS NULL) = (answered_at IS NULL)", name=op.f("ck_asks_answer_has_time")),
        sa.CheckConstraint("kind IN ('client', 'approval')", name=op.f("ck_asks_kind")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_asks_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "round", "tool_use_id", name=op.f("pk_asks")),
    )
    op.create_index("ix_asks_expiry", "asks", ["expires_at"], unique=False, postgresql_where=sa.text("answer IS NULL"))
    op.create_table(
        "steers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("blocks", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_steers_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_steers")),
    )
    op.create_index(op.f("ix_steers_turn_id"), "steers", ["turn_id"], unique=False)
    op.add_column("turns", sa.Column("asked", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("turns", sa.Column("arrivals", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.create_check_constraint(op.f("ck_turns_people_counts"), "turns", "asked >= 0 AND arrivals >= 0")
    op.add_column("idempotency_keys", sa.Column("steer_id", sa.Uuid(), nullable=True))
    op.add_column("blocks", sa.Column("notes", sa.JSON(), nullable=True))
    op.add_column("blocks", sa.Column("whole", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_blocks_only_results_are_cut"), "blocks", "type = 'tool_result' OR whole IS NULL"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_blocks_only_results_are_cut"), "blocks")
    op.drop_column("blocks", "whole")
    op.drop_column("blocks", "notes")
    op.drop_column("idempotency_keys", "steer_id")
    op.drop_constraint(op.f("ck_turns_people_counts"), "turns")
    op.drop_column("turns", "arrivals")
    op.drop_column("turns", "asked")
    op.drop_index(op.f("ix_steers_turn_id"), table_name="steers")
    op.drop_table("steers")
    op.drop_index("ix_asks_expiry", table_name="asks", postgresql_where=sa.text("answer IS NULL"))
    op.drop_table("asks")

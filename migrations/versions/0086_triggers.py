"""schedules that signed messages start: `trigger` takes the place of `cron` and `every`

Revision: 0086, after: 0085
"""

import sqlalchemy as sa
from alembic import op

revision = "0086"
down_revision = "0085"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("trigger", sa.JSON(), nullable=True))
    op.add_column("schedules", sa.Column("busy_until", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint(op.f("ck_schedules_one_rule"), "schedules", type_="check")
    op.create_check_constraint(op.f("ck_schedules_one_rule"), "schedules", "num_nonnulls(cron, every, trigger) = 1")


def downgrade() -> None:
    op.execute("DELETE FROM schedules WHERE trigger IS NOT NULL")
    op.drop_constraint(op.f("ck_schedules_one_rule"), "schedules", type_="check")
    op.create_check_constraint(op.f("ck_schedules_one_rule"), "schedules", "num_nonnulls(cron, every) = 1")
    op.drop_column("schedules", "busy_until")
    op.drop_column("schedules", "trigger")

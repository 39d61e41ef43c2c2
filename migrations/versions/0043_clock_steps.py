"""clock steps: when the clock of Postgres was set back

Revision: 0043, after: 0042
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "clock_steps",
        sa.Column("began", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("began", name=op.f("pk_clock_steps")),
    )


def downgrade() -> None:
    op.drop_table("clock_steps")

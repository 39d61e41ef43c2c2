"""activity: what replicas report about the turns that they run

Revision: 0025, after: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "activity",
        sa.Column("replica", sa.Uuid(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("turns", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["replica"], ["replicas.id"], name=op.f("fk_activity_replica"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_activity")),
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("activity")

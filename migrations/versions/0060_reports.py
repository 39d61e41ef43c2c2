"""reports: outcomes of jobs that their turn does not wait for, and how they were delivered

Revision: 0060, after: 0059

A job reports only while no replica of the version before lives: such a replica would send a report as the user's words.
"""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("reports", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("jobs", sa.Column("delivery", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("delivered_to", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("delivered_round", sa.Integer(), nullable=True))
    op.add_column("steers", sa.Column("is_report", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("replicas", sa.Column("knows_reports", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("replicas", "knows_reports")
    op.drop_column("steers", "is_report")
    op.drop_column("jobs", "delivered_round")
    op.drop_column("jobs", "delivered_to")
    op.drop_column("jobs", "delivery")
    op.drop_column("jobs", "reports")

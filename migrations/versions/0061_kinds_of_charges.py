"""kinds of charges: the constraint of the revision before is examined

Revision: 0061, after: 0060
"""

from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE charges VALIDATE CONSTRAINT ck_charges_kind")


def downgrade() -> None:
    """Nothing: the constraint is the same."""

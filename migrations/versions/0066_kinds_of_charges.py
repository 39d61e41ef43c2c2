"""kinds of charges: the constraint of the revision before is examined

Revision: 0066, after: 0065
"""

from alembic import op

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE charges VALIDATE CONSTRAINT ck_charges_kind")


def downgrade() -> None:
    """Nothing: the constraint is the same."""

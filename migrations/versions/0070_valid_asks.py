"""the constraints of asks that the revision before has changed are validated

Revision: 0070, after: 0069
"""

from alembic import op

revision = "0070"
down_revision = "0069"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("ck_asks_kind", "ck_asks_elicitation_has_question"):
        op.execute(f"ALTER TABLE asks VALIDATE CONSTRAINT {name}")


def downgrade() -> None:
    pass

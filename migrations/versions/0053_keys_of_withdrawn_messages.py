"""keys of withdrawn messages: the key of a POST outlasts its message

Revision: 0053, after: 0052

A repetition of the POST is refused, and does not bring the message back. The version before refuses it as well: the
key is taken, and it finds no turn.
"""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("idempotency_keys", "turn_id", existing_type=sa.Uuid(), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM idempotency_keys WHERE turn_id IS NULL")
    op.alter_column("idempotency_keys", "turn_id", existing_type=sa.Uuid(), nullable=False)

"""index of withdrawn keys: idempotency keys whose message was withdrawn, for their sweep

Revision: 0054, after: 0053
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_idempotency_keys_withdrawn",
        "idempotency_keys",
        ["owner", "key"],
        postgresql_where=sa.text("turn_id IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_idempotency_keys_withdrawn", table_name="idempotency_keys")

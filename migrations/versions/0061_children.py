"""children: the chats of agents

Revision: 0061, after: 0060
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE chats ADD COLUMN IF NOT EXISTS of_turn uuid")
    create_index_concurrently("ix_chats_of_turn", "chats", ["of_turn"], postgresql_where=sa.text("of_turn IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_chats_of_turn", table_name="chats")
    op.drop_column("chats", "of_turn")

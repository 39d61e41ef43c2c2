"""children: the chats of agents by the turn that has called

Revision: 0056, after: 0055
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently("ix_chats_of_turn", "chats", ["of_turn"], postgresql_where=sa.text("of_turn IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_chats_of_turn", table_name="chats")

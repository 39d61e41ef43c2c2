"""index of messages: the words of people, for a server without the extension `search`

Revision: 0051, after: 0050
"""

import sqlalchemy as sa
from alembic import op

from turnstream.storage.index_build import create_index_concurrently

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_concurrently(
        "ix_blocks_messages",
        "blocks",
        [sa.text("to_tsvector('simple'::regconfig, \"left\"(text, 50000))")],
        postgresql_using="gin",
        postgresql_where=sa.text("type = 'user_text' OR type = 'text' AND attempt = 0"),
    )


def downgrade() -> None:
    op.drop_index("ix_blocks_messages", table_name="blocks")

"""indexes: turns of a chat by time, the queue by time, blocks that may name uploads

Revision: 0021, after: 0020

Writes of turns and blocks wait while they are built: about a second for a million turns.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_turns_chat_id_created_at_id", "turns", ["chat_id", "created_at", "id"])
    op.drop_index("ix_turns_queue", table_name="turns")
    op.create_index("ix_turns_queue", "turns", ["created_at", "id"], postgresql_where=sa.text("status = 'queued'"))
    op.create_index(
        "ix_blocks_naming_uploads",
        "blocks",
        ["turn_id"],
        postgresql_where=sa.text("type IN ('image', 'document', 'tool_result') AND data IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_blocks_naming_uploads", table_name="blocks")
    op.drop_index("ix_turns_queue", table_name="turns")
    op.create_index("ix_turns_queue", "turns", ["id"], postgresql_where=sa.text("status = 'queued'"))
    op.drop_index("ix_turns_chat_id_created_at_id", table_name="turns")

"""queue: places that a queued turn had before, and the replicas that let messages in the queue be changed

Revision: 0051, after: 0050

A queued turn that was edited or moved leaves a place for the readers of its chat, each time another one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint("pk_deleted_turns", "deleted_turns")
    op.create_primary_key("pk_deleted_turns", "deleted_turns", ["turn_id", "place"])
    op.add_column("replicas", sa.Column("edits_queue", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("replicas", "edits_queue")
    # Of a turn the last place is enough for the version before.
    op.execute(
        "DELETE FROM deleted_turns WHERE EXISTS (SELECT FROM deleted_turns AS later"
        " WHERE later.turn_id = deleted_turns.turn_id AND later.place > deleted_turns.place)"
    )
    op.drop_constraint("pk_deleted_turns", "deleted_turns")
    op.create_primary_key("pk_deleted_turns", "deleted_turns", ["turn_id"])

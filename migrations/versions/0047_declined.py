"""declined: replicas that cannot run a turn

Revision: 0047, after: 0046

A replica without the model or the tools of a turn leaves it to the others. Replicas of the version before decline
nothing, and claim what others have declined. The `configuration` of a replica is what the others compare with theirs.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("declined", postgresql.ARRAY(sa.Uuid()), nullable=True))
    op.add_column("turns", sa.Column("declined_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("replicas", sa.Column("configuration", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("replicas", "configuration")
    op.drop_column("turns", "declined_until")
    op.drop_column("turns", "declined")

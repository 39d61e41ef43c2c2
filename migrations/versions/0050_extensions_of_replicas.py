"""extensions of replicas: triggers of an extension know whether a replica has it

Revision: 0050, after: 0049

A replica of the version before names none. It has the search, whose triggers ask first. Functions that no trigger calls
since the texts of turns are indexed after their commits are dropped.
"""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "replicas",
        sa.Column("extensions", sa.ARRAY(sa.Text()), server_default=sa.text("'{search}'"), nullable=False),
    )
    for name in ("keep_searchable_chat", "keep_searchable_turn"):
        op.execute(f"DROP FUNCTION IF EXISTS {name}()")


def downgrade() -> None:
    # Triggers call it until the version before puts its own functions in their places.
    op.execute("CREATE OR REPLACE FUNCTION search_is_active() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'")
    op.drop_column("replicas", "extensions")

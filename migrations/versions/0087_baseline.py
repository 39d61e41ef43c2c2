"""baseline: the revisions up to here are one

Revision: 0087, after: nothing

It never runs: a database without tables gets those of schema.sql, and one of a revision from 0036 on the steps of
steps.sql. One of an earlier revision is refused (turnstream/storage/migrations.py).
"""

revision = "0087"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    raise NotImplementedError("schema.sql and sql/ make a database without tables")


def downgrade() -> None:
    raise NotImplementedError("the oldest revision: drop the schema instead")

"""journal_log: one row for each replica and tick, and open text that survives a crash of Postgres

Revision: 0029, after: 0028

A replica of the version before writes and reads `open_text` alone. It is rewritten here under a lock, which takes
milliseconds: it holds the text of open blocks only.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal_ticks",
        sa.Column("replica", sa.Uuid(), nullable=False),
        sa.Column("tick", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("pieces", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "tick", name=op.f("pk_journal_ticks")),
        prefixes=["UNLOGGED"],
    )
    # A tick is read once or twice: to compress it would cost more than it saves.
    op.execute("ALTER TABLE journal_ticks ALTER COLUMN pieces SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE open_text SET LOGGED")


def downgrade() -> None:
    op.execute("ALTER TABLE open_text SET UNLOGGED")
    op.drop_table("journal_ticks")

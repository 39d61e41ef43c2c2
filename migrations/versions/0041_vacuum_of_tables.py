"""vacuum of tables: those that only grow, and those whose rows change all the time

Revision: 0041, after: 0040

By default a table is vacuumed when a fifth of its rows are new or dead. In a table that only grows this comes after tens
of millions of rows, and the freezing of them all at once; in a table of few rows that change all the time it comes too
late. The lock that this takes does not wait for writes.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

GROWING = ("blocks", "rounds", "turns", "charges", "tool_calls", "audit", "search_texts")
CHANGING = ("journal_ticks", "open_text", "search_pending", "reservations", "replicas", "activity", "accounts")


def upgrade() -> None:
    for table in GROWING:
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_insert_scale_factor = 0.02,"
            " autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)"
        )
    for table in CHANGING:
        op.execute(f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)")


def downgrade() -> None:
    for table in GROWING:
        op.execute(
            f"ALTER TABLE {table} RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_scale_factor,"
            " autovacuum_analyze_scale_factor)"
        )
    for table in CHANGING:
        op.execute(f"ALTER TABLE {table} RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)")

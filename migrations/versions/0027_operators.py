"""operators: a replica that is to drain, failed turns by time, the ledger's newest charges without a scan

Revision: 0027, after: 0026

Writes of turns wait while the index is built, which reads them once. New pages of the ledger are summarised when they are
full, and not only by the next vacuum.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("replicas", sa.Column("draining_since", sa.DateTime(timezone=True)))
    op.create_index("ix_turns_failed", "turns", ["ended_at"], postgresql_where=sa.text("status = 'error'"))
    op.execute("ALTER INDEX ix_charges_charged_at SET (autosummarize = on)")


def downgrade() -> None:
    op.execute("ALTER INDEX ix_charges_charged_at RESET (autosummarize)")
    op.drop_index("ix_turns_failed", table_name="turns")
    op.drop_column("replicas", "draining_since")

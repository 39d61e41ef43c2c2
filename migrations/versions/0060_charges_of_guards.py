"""charges of guards: checks of texts by a model are a kind of charges

Revision: 0060, after: 0059

Rows that exist have one of the other kinds, so the constraint is examined by the next revision, which does not stop
writers.
"""

from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE charges DROP CONSTRAINT ck_charges_kind,"
        " ADD CONSTRAINT ck_charges_kind CHECK (kind IN ('round', 'summary', 'title', 'guard')) NOT VALID"
    )


def downgrade() -> None:
    op.execute("UPDATE charges SET kind = 'summary' WHERE kind = 'guard'")
    op.execute(
        "ALTER TABLE charges DROP CONSTRAINT ck_charges_kind,"
        " ADD CONSTRAINT ck_charges_kind CHECK (kind IN ('round', 'summary', 'title'))"
    )

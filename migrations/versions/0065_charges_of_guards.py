"""charges of guards: checks of texts by a model are a kind of charges

Revision: 0065, after: 0064

Rows that exist have one of the other kinds, so the constraint is examined by the next revision, which does not stop
writers.
"""

from alembic import op

revision = "0065"
down_revision = "0064"
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

"""lineage: a turn keeps the numbers of its attempts, which are drawn at random

Revision: 0042, after: 0041

A cursor of an attempt that is not in the lineage comes from a past that this database does not have. A trigger keeps
the lineage, also for replicas of the version before, which know nothing of it. It is null as long as the attempt that
the turn was made with, or had at this migration, is its only one.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

FUNCTIONS = {
    "keep_lineage()": """
CREATE FUNCTION keep_lineage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lineage := coalesce(OLD.lineage, ARRAY[OLD.attempt]) || NEW.attempt;
    RETURN NEW;
END
$$
""",
}
TRIGGERS = {
    "lineage_of_turn ON turns": """
CREATE TRIGGER lineage_of_turn BEFORE UPDATE OF attempt ON turns FOR EACH ROW
WHEN (NEW.attempt <> OLD.attempt AND NEW.lineage IS NOT DISTINCT FROM OLD.lineage) EXECUTE FUNCTION keep_lineage()
""",
}


def upgrade() -> None:
    op.add_column("turns", sa.Column("lineage", postgresql.ARRAY(sa.Integer()), nullable=True))
    for function in FUNCTIONS.values():
        op.execute(sa.text(function.replace(":", r"\:")))
    for trigger in TRIGGERS.values():
        op.execute(trigger)


def downgrade() -> None:
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}")
    for signature in FUNCTIONS:
        op.execute(f"DROP FUNCTION {signature}")
    op.drop_column("turns", "lineage")

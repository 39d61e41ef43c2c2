"""elicitations: questions of a tool to a person while its call runs

Revision: 0015, after: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("asks", sa.Column("question", sa.JSON(), nullable=True))
    op.drop_constraint(op.f("ck_asks_kind"), "asks")
    op.create_check_constraint(op.f("ck_asks_kind"), "asks", "kind IN ('client', 'approval', 'elicitation')")
    op.create_check_constraint(
        op.f("ck_asks_elicitation_has_question"), "asks", "(kind = 'elicitation') = (question IS NOT NULL)"
    )


def downgrade() -> None:
    op.execute("DELETE FROM asks WHERE kind = 'elicitation'")
    op.drop_constraint(op.f("ck_asks_elicitation_has_question"), "asks")
    op.drop_constraint(op.f("ck_asks_kind"), "asks")
    op.create_check_constraint(op.f("ck_asks_kind"), "asks", "kind IN ('client', 'approval')")
    op.drop_column("asks", "question")

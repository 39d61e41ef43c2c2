"""detached jobs: calls that go on elsewhere, programs that settle them, and the chats of agents

Revision: 0055, after: 0054

Kinds of jobs are those of extensions, too. Of the functions, search_catch_up looks for what waits after it has waited
itself.
"""

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("token_digest", sa.LargeBinary(), nullable=True))
    op.drop_constraint(op.f("ck_jobs_kind"), "jobs", type_="check")
    op.add_column("chats", sa.Column("of_turn", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column("chats", "of_turn")
    op.create_check_constraint(op.f("ck_jobs_kind"), "jobs", "kind IN ('tool')")
    op.drop_column("jobs", "token_digest")

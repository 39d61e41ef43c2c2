"""detached jobs: calls that go on elsewhere, and programs that settle them

Revision: 0060, after: 0059

Kinds of jobs are those of extensions, too. Of the functions, search_catch_up looks for what waits after it has waited
itself.
"""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("token_digest", sa.LargeBinary(), nullable=True))
    op.drop_constraint(op.f("ck_jobs_kind"), "jobs", type_="check")


def downgrade() -> None:
    op.create_check_constraint(op.f("ck_jobs_kind"), "jobs", "kind IN ('tool')")
    op.drop_column("jobs", "token_digest")

"""what a running tool has shown of its result so far

Revision: 0014, after: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("preliminary", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_calls", "preliminary")

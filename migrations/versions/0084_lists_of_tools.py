"""accepted tools: what an owner has accepted of the tools of an MCP server

Revision: 0084, after: 0083
"""

import sqlalchemy as sa
from alembic import op

revision = "0084"
down_revision = "0083"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sign_ins", sa.Column("tools", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("sign_ins", "tools")

"""encrypted titles are not searched

Revision: 0089, after: 0088

The function `search_vector` has changed; it is in a file.
"""

revision = "0089"
down_revision = "0088"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass

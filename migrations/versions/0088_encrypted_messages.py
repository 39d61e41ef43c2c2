"""encrypted messages are not searched

Revision: 0088, after: 0087

The functions `search_index` and `search_index_rows` have changed; they are in files.
"""

revision = "0088"
down_revision = "0087"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass

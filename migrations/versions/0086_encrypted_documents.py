"""encrypted documents are searched by their paths alone

Revision: 0086, after: 0085

The function `search_document_vector` has changed; it is in a file.
"""

revision = "0086"
down_revision = "0085"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass

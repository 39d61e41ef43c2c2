"""encrypted documents are searched by their paths alone

Revision: 0087, after: 0086

The function `search_document_vector` has changed; it is in a file.
"""

revision = "0087"
down_revision = "0086"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass

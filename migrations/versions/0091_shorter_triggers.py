"""triggers of a turn's end and of the search index ask less

Revision: 0091, after: 0090

The functions `wake_parent`, `mark_searchable_chat` and `mark_searchable_turn` have changed; they are in files.
"""

revision = "0091"
down_revision = "0090"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass

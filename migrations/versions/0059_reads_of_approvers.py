"""reads of approvers: asks_to_approve reads open asks by their index

Revision: 0059, after: 0058

The function is the change; the revision tells servers of it.
"""

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: the function is in a file."""


def downgrade() -> None:
    """Nothing."""

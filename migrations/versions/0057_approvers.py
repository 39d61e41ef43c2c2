"""approvers of asks, and roles of tokens

Revision: 0057, after: 0056

A trigger holds answers to the approvers. Replicas of the version before name none, so their answers are refused.
"""

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("asks", sa.Column("approvers", sa.ARRAY(sa.Text()), nullable=True))
    op.add_column("asks", sa.Column("links_revoked_at", sa.DateTime(timezone=True), nullable=True))
    for table in ("tokens", "browser_tokens"):
        op.add_column(table, sa.Column("roles", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False))


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS answer_by_approver ON asks")
    op.execute("DROP FUNCTION IF EXISTS check_approver(), asks_to_approve(text, uuid, integer), principals_of(text)")
    for table in ("browser_tokens", "tokens"):
        op.drop_column(table, "roles")
    op.drop_column("asks", "links_revoked_at")
    op.drop_column("asks", "approvers")

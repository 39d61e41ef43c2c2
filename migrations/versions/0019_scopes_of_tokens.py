"""scopes, end, last use and plan of tokens; whether the server ever had one

Revision: 0019, after: 0018
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "tokens",
        sa.Column(
            "scopes", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{read,chat,approve}'"), nullable=False
        ),
    )
    for column in (
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
    ):
        op.add_column("tokens", column)
    op.create_table(
        "token_requirement",
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("single", name=op.f("ck_token_requirement_one_row")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_token_requirement")),
    )
    op.execute("INSERT INTO token_requirement SELECT FROM tokens LIMIT 1")


def downgrade() -> None:
    op.drop_table("token_requirement")
    for column in ("plan", "last_used_at", "expires_at", "scopes"):
        op.drop_column("tokens", column)

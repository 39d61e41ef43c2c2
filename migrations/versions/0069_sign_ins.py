"""sign-ins of owners to MCP servers, and asks for them

Revision: 0069, after: 0068

The constraints of asks are validated by the next revision, which does not keep writers waiting.
"""

import sqlalchemy as sa
from alembic import op

revision = "0069"
down_revision = "0068"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("tokens", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("signed_in_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refreshed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refreshing_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.LargeBinary(), nullable=True),
        sa.Column("pending", sa.Text(), nullable=True),
        sa.Column("pending_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(tokens IS NULL) = (signed_in_at IS NULL)", name=op.f("ck_sign_ins_tokens_have_time")),
        sa.CheckConstraint("num_nulls(state, pending, pending_until) IN (0, 3)", name=op.f("ck_sign_ins_pending")),
        sa.PrimaryKeyConstraint("owner", "server", name=op.f("pk_sign_ins")),
    )
    op.create_index(
        "ix_sign_ins_state", "sign_ins", ["state"], unique=True, postgresql_where=sa.text("state IS NOT NULL")
    )
    _replace_constraints(
        "kind IN ('client', 'approval', 'elicitation', 'sign_in')",
        "(kind IN ('elicitation', 'sign_in')) = (question IS NOT NULL)",
    )


def downgrade() -> None:
    op.execute("UPDATE asks SET kind = 'elicitation' WHERE kind = 'sign_in'")
    _replace_constraints(
        "kind IN ('client', 'approval', 'elicitation')", "(kind = 'elicitation') = (question IS NOT NULL)"
    )
    op.drop_table("sign_ins")


def _replace_constraints(kind: str, question: str) -> None:
    for name, condition in (("ck_asks_kind", kind), ("ck_asks_elicitation_has_question", question)):
        op.execute(f"ALTER TABLE asks DROP CONSTRAINT {name}")
        op.execute(f"ALTER TABLE asks ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID")

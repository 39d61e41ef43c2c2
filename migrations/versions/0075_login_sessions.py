"""sessions of people who signed in at an issuer

Revision: 0075, after: 0074
"""

import sqlalchemy as sa
from alembic import op

revision = "0075"
down_revision = "0074"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "login_sessions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("sid", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("roles", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "octet_length(hash) = 32 AND octet_length(state) = 32", name=op.f("ck_login_sessions_sha256")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_sessions")),
        sa.UniqueConstraint("hash", name=op.f("uq_login_sessions_hash")),
        sa.UniqueConstraint("state", name=op.f("uq_login_sessions_state")),
    )
    op.create_index(op.f("ix_login_sessions_owner"), "login_sessions", ["owner"])
    op.create_index(op.f("ix_login_sessions_issuer_subject"), "login_sessions", ["issuer", "subject"])
    op.create_index(op.f("ix_login_sessions_expires_at"), "login_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("login_sessions")

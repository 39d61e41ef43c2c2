"""reach of tokens: what a browser token fixes and which documents it reaches; files that are for one chat; whether the
database had owners before their names had a prefix

Revision: 0048, after: 0036
"""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("browser_tokens", sa.Column("folder", sa.Text(), nullable=True))
    op.add_column("browser_tokens", sa.Column("fixed", sa.JSON(), nullable=True))
    op.create_table(
        "chat_uploads",
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("upload_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_chat_uploads_chat_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_chat_uploads_upload_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chat_id", "upload_id", name=op.f("pk_chat_uploads")),
    )
    op.create_index(op.f("ix_chat_uploads_upload_id"), "chat_uploads", ["upload_id"], unique=False)
    op.create_table(
        "plain_owner_names",
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("single", name=op.f("ck_plain_owner_names_one_row")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_plain_owner_names")),
    )
    # Owners who have logged in before keep their names.
    for table in ("chats", "uploads", "documents"):
        op.execute(f"INSERT INTO plain_owner_names SELECT FROM {table} LIMIT 1 ON CONFLICT DO NOTHING")


def downgrade() -> None:
    op.drop_table("plain_owner_names")
    op.drop_table("chat_uploads")
    op.drop_column("browser_tokens", "fixed")
    op.drop_column("browser_tokens", "folder")

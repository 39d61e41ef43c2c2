"""reach of tokens: what a browser token fixes and which documents it reaches; files that are for one chat

Revision: 0040, after: 0039
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
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


def downgrade() -> None:
    op.drop_table("chat_uploads")
    op.drop_column("browser_tokens", "fixed")
    op.drop_column("browser_tokens", "folder")

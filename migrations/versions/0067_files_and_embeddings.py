"""names and purposes of uploads, and charges of calls outside of chats

Revision: 0067, after: 0066

Kinds of charges are those of extensions, too: a call for embeddings has no chat. Replicas of the version before leave
the new columns empty, and count such charges.
"""

import sqlalchemy as sa
from alembic import op

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("uploads", sa.Column("file_name", sa.Text(), nullable=True))
    op.add_column("uploads", sa.Column("purpose", sa.Text(), nullable=True))
    op.drop_constraint(op.f("ck_charges_kind"), "charges", type_="check")
    op.alter_column("charges", "chat_id", existing_type=sa.Uuid(), nullable=True)


def downgrade() -> None:
    # The tables of the version before have no place for them.
    op.execute("DELETE FROM charges WHERE chat_id IS NULL")
    op.alter_column("charges", "chat_id", existing_type=sa.Uuid(), nullable=False)
    op.create_check_constraint(op.f("ck_charges_kind"), "charges", "kind IN ('round', 'summary', 'title')")
    op.drop_column("uploads", "purpose")
    op.drop_column("uploads", "file_name")

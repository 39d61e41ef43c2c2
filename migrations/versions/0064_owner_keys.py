"""owner keys: a key of each owner with secrets, wrapped by a master key

Revision: 0064, after: 0059
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0064"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "owner_keys",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("master", sa.LargeBinary(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("octet_length(master) = 8", name=op.f("ck_owner_keys_master_is_an_id")),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_owner_keys")),
    )
    op.create_index(op.f("ix_owner_keys_master"), "owner_keys", ["master"])
    op.add_column("replicas", sa.Column("master_keys", ARRAY(sa.LargeBinary()), nullable=True))


def downgrade() -> None:
    op.drop_column("replicas", "master_keys")
    op.drop_table("owner_keys")

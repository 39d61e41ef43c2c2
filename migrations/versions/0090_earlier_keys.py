"""owner keys: the key before, while rows are encrypted again

Revision: 0090, after: 0089
"""

from alembic import op

revision = "0090"
down_revision = "0089"


def upgrade() -> None:
    op.execute("ALTER TABLE owner_keys ADD COLUMN earlier bytea, ADD COLUMN resealed_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE owner_keys ADD CONSTRAINT no_rotation_is_open CHECK (earlier IS NULL)")
    op.execute("ALTER TABLE owner_keys DROP COLUMN earlier, DROP COLUMN resealed_at")

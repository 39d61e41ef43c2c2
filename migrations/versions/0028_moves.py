"""moves: owners who come from another cell or go to one

Revision: 0028, after: 0027
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

TABLES = ("chats", "uploads", "documents")
# The lock waits for a move that copies just now. Error class TS is not one of Postgres.
FUNCTION = """
CREATE FUNCTION refuse_owner_who_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE move moves;
BEGIN
    SELECT * INTO move FROM moves WHERE owner = NEW.owner AND state <> 'arrived' FOR KEY SHARE;
    IF move.state = 'gone' OR move.held_until > clock_timestamp() THEN
        RAISE EXCEPTION 'the owner is moved to the cell %', move.cell USING ERRCODE = 'TS001';
    END IF;
    RETURN NEW;
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "moves",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("state IN ('leaving', 'gone', 'arrived')", name=op.f("ck_moves_state")),
        sa.CheckConstraint("(state = 'leaving') = (held_until IS NOT NULL)", name=op.f("ck_moves_leaving_is_held")),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_moves")),
    )
    op.execute(FUNCTION)
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER owner_stays BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_owner_who_moves()"
        )


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TRIGGER owner_stays ON {table}")
    op.execute("DROP FUNCTION refuse_owner_who_moves()")
    op.drop_table("moves")

"""row-level security: the owner of a transaction, set by a parameter of its statements

Revision: 0022, after: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

POLICIES_GONE = """
DO $$
DECLARE entry record;
BEGIN
    FOR entry IN SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid AND polname = 'by_owner'
        WHERE relnamespace = to_regnamespace(current_schema())
    LOOP
        EXECUTE format('DROP POLICY by_owner ON %I', entry.relname);
        EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', entry.relname);
    END LOOP;
END
$$
"""
# What triggers do is done as the owner of the tables: the API's role need not read the replicas.
TRIGGERED = ("keep_webhook", "keep_waiting_webhook", "keep_deleted_chat")
# These see all rows, as their owner does.
FUNCTIONS = (
    """
CREATE FUNCTION chat_of_another(uuid) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
    SELECT EXISTS (
        SELECT FROM chats WHERE id = $1 AND owner IS DISTINCT FROM current_setting('turnstream.owner', true)
    )
$$
""",
    """
CREATE FUNCTION turn_of_another(uuid) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
    SELECT EXISTS (
        SELECT FROM turns JOIN chats ON chats.id = chat_id
        WHERE turns.id = $1 AND owner IS DISTINCT FROM current_setting('turnstream.owner', true)
    )
$$
""",
)


def upgrade() -> None:
    """The policies are made by env.py behind every migration: they follow from the columns of the tables."""
    # The check is done when a parameter is converted to the domain, before its statement is planned and run.
    op.execute("CREATE DOMAIN owner_scope AS text CHECK (set_config('turnstream.owner', VALUE, true) IS NOT NULL)")
    for function in FUNCTIONS:
        op.execute(function)
    for name in TRIGGERED:
        op.execute(f"ALTER FUNCTION {name}() SECURITY DEFINER")
        op.execute(f"ALTER FUNCTION {name}() SET search_path FROM CURRENT")


def downgrade() -> None:
    op.execute(POLICIES_GONE)
    for name in TRIGGERED:
        op.execute(f"ALTER FUNCTION {name}() SECURITY INVOKER")
        op.execute(f"ALTER FUNCTION {name}() RESET search_path")
    op.execute("DROP FUNCTION chat_of_another(uuid), turn_of_another(uuid)")
    op.execute("DROP DOMAIN owner_scope")

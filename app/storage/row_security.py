"""Row-level security: a second wall between owners, beside the conditions in the statements.

The API connects as a role that owns nothing (`Database.by_owner`). Policies hold each of its statements to the rows of
one owner, the one that the connection's transaction names. The engine connects as the owner of the tables, to whom no
policy applies.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from app.domain.errors import ConfigError
from app.storage.database import single_connection

# The role of an embedded Postgres.
API_ROLE: Final = "turnstream_api"
# Tables with an owner that the API does not use as this role: whose a token is, it asks before it knows the owner, and
# the audit trail is not its own, nor are moves between cells. Tables without an owner it does not reach either.
CLOSED: Final = frozenset({"tokens", "audit", "moves"})

# Of the tables %(tables)s: where a row carries its owner, it is compared; else the row of its chat or turn must be one
# that the policy of that table shows. A new row may come with its chat or turn, in one statement, whose other parts it
# does not see: it must not be one of another owner, and the foreign key demands that there is one. A table that a later
# migration makes gets its policy by its columns.
POLICIES: Final = """
DO $$
DECLARE entry record;
BEGIN
    IF to_regtype('owner_scope') IS NULL THEN  -- the database was downgraded
        RETURN;
    END IF;
    FOR entry IN
        SELECT relname, CASE
            WHEN bool_or(attname = 'owner') THEN 'USING (owner = current_setting(''turnstream.owner'', true))'
            WHEN bool_or(attname = 'chat_id') THEN format(
                'USING (EXISTS (SELECT FROM chats WHERE chats.id = %%I.chat_id)) '
                'WITH CHECK (NOT chat_of_another(chat_id))', relname)
            WHEN bool_or(attname = 'turn_id') THEN format(
                'USING (EXISTS (SELECT FROM turns WHERE turns.id = %%I.turn_id)) '
                'WITH CHECK (NOT turn_of_another(turn_id))', relname)
            END AS rule
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
        WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_schema()) AND relname IN (%(tables)s)
          AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND polname = 'by_owner')
        GROUP BY pg_class.oid, relname ORDER BY relname
    LOOP
        CONTINUE WHEN entry.rule IS NULL;
        EXECUTE format('ALTER TABLE %%I ENABLE ROW LEVEL SECURITY', entry.relname);
        EXECUTE format('CREATE POLICY by_owner ON %%I %%s', entry.relname, entry.rule);
    END LOOP;
END
$$
"""
_CREATE_ROLE = f"""
DO $$
BEGIN
    CREATE ROLE {API_ROLE} LOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN  -- another process is faster
END
$$
"""
_LOCK = 7_481_516_343
_ROLE = "SELECT rolname, rolsuper OR rolbypassrls AS unlimited FROM pg_roles WHERE rolname = current_user"
_TABLES = """
SELECT relname, pg_has_role($1, relowner, 'MEMBER') AS owned,
    has_table_privilege($1, pg_class.oid, 'SELECT') AND has_table_privilege($1, pg_class.oid, 'INSERT')
    AND has_table_privilege($1, pg_class.oid, 'UPDATE') AND has_table_privilege($1, pg_class.oid, 'DELETE') AS granted
FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid AND polname = 'by_owner'
WHERE relnamespace = to_regnamespace(current_schema())
"""
# By the leases the API knows how old a standby is (standby.py).
_SEES_LEASES = "SELECT has_column_privilege($1, 'replicas', 'lease_until', 'SELECT')"
_GRANT = """
DO $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), '{role}');
    EXECUTE format('GRANT {privileges} TO %I', '{role}');
END
$$
"""


def policies_of(tables: Iterable[str]) -> str:
    """The SQL that makes the policies which are missing."""
    return POLICIES % {"tables": ", ".join(f"'{name}'" for name in sorted({*tables} - CLOSED)) or "NULL"}


async def embedded_api_url(url: str) -> str:
    """The URL of the API's role in the embedded Postgres at `url`, where it is made if need be."""
    async with single_connection(url) as connection:
        await connection.execute(_CREATE_ROLE)
    parts = urlsplit(url)
    return parts._replace(netloc=f"{API_ROLE}@{parts.netloc.rpartition('@')[2]}").geturl()


async def admit(url: str, api_url: str, *, grant: bool = True) -> None:
    """Gives the role of `api_url` what the API needs in the database of `url`, which has its newest revision; without
    `grant` it is only checked. Raises ConfigError for a role that no policy would hold.
    """
    try:
        async with single_connection(api_url, statement_cache_size=0) as connection:  # it may pass a pooler
            (role,) = await connection.fetch(_ROLE)
        # Two processes that grant the same at the same time would be refused.
        async with single_connection(url) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            tables = await connection.fetch(_TABLES, role["rolname"])
            if role["unlimited"] or any(table["owned"] for table in tables):
                raise ConfigError(
                    f"TURNSTREAM_API_DATABASE_URL names the role {role['rolname']}, to which row-level security"
                    " does not apply; it must be no superuser, have no BYPASSRLS, and own no table of turnstream."
                )
            missing = []
            if closed := [table["relname"] for table in tables if not table["granted"]]:
                missing.append(f"SELECT, INSERT, UPDATE, DELETE ON {', '.join(closed)}")
            if not await connection.fetchval(_SEES_LEASES, role["rolname"]):
                missing.append("SELECT (id, lease_until) ON replicas")
            for privileges in missing if grant else ():
                name = role["rolname"].replace("'", "''")
                await connection.execute(_GRANT.format(role=name, privileges=privileges))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"TURNSTREAM_API_DATABASE_URL names a role that cannot be used: {error}") from error

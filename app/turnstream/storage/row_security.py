"""Row-level security: a second barrier between owners, in addition to the conditions in the statements.

The API connects as a role that owns nothing (`Database.key`). Policies limit each of its statements to the rows of one
owner, whom the transaction names with a server's signature. The engine connects as the owner of the tables, to whom
policies do not apply.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import asyncpg

from turnstream.domain.errors import ConfigError
from turnstream.storage.database import SigningKey, single_connection
from turnstream.storage.sql_files import functions

if TYPE_CHECKING:
    from turnstream.storage.all_tables import StoredTable

# The API's role in an embedded Postgres.
API_ROLE: Final = "turnstream_api"
# The API's role may change these tables only in part; on other tables it has all privileges. Only the engine inserts
# asks and jobs. Asks and grants are deleted with their chat. A function writes tool sets.
NARROW: Final = {
    "asks": "SELECT, UPDATE (answer, answered_at, links_revoked_at)",
    "jobs": "SELECT",
    "grants": "SELECT, INSERT, UPDATE (revoked_at)",
    "tool_sets": "SELECT",
}
# Creates policies for the tables in %(paths)s, a list of names and paths. A policy compares the owner in the row. A row
# without an owner is visible if its chat or turn is visible. One statement may insert such a row together with its chat
# or turn, which it cannot see yet. So an insert requires only that the chat or turn does not belong to another owner;
# the foreign key requires its existence. A database of an older version lacks some tables and columns.
POLICIES: Final = """
DO $$
DECLARE
    entry record;
    -- In a subquery it is called once in a statement. The other form is that of a database that was downgraded.
    scope text := CASE WHEN to_regprocedure('owner_in_scope()') IS NULL
        THEN 'current_setting(''turnstream.owner'', true)' ELSE '(SELECT owner_in_scope())' END;
BEGIN
    IF to_regprocedure('chat_of_another(uuid)') IS NULL THEN  -- the functions of a new database come later
        RETURN;
    END IF;
    FOR entry IN
        SELECT relname, CASE path
            WHEN 'owner' THEN format('USING (owner = %%s)', scope)
            WHEN 'chat_id' THEN format(
                'USING (EXISTS (SELECT FROM chats WHERE chats.id = %%I.chat_id)) '
                'WITH CHECK (NOT chat_of_another(chat_id)%%s)', relname,
                CASE WHEN EXISTS (
                    SELECT FROM pg_attribute
                    WHERE attrelid = pg_class.oid AND attname = 'queue_owner' AND NOT attisdropped
                ) THEN format(' AND coalesce(queue_owner = %%s, true)', scope) END)
            WHEN 'turn_id' THEN format(
                'USING (EXISTS (SELECT FROM turns WHERE turns.id = %%I.turn_id)) '
                'WITH CHECK (NOT turn_of_another(turn_id))', relname)
            END AS rule
        FROM (VALUES %(paths)s) AS owned (name, path) JOIN pg_class ON relname = name
            JOIN pg_attribute ON attrelid = pg_class.oid AND attname = path AND NOT attisdropped
        WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_schema())
          AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND polname = 'by_owner')
        ORDER BY relname
    LOOP
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
# Prevents callers from misusing the rights of functions. A trigger's function, or a function with other rights than its
# caller, looks up names in the catalog, in this schema, and last in the temporary tables of the session. If the user
# may create a role, functions belong to a role that cannot log in and owns nothing else. Every call needs a grant.
_HARDEN = """
DO $$
DECLARE
    entry record;
    ours name[] := '{OURS}';
    schema name := current_schema();
    tables oid := (SELECT relowner FROM pg_class WHERE oid = to_regclass('chats'));
    keeper name := left(pg_get_userbyid(tables), 53) || '_functions';
    path text := format('pg_catalog, %I, pg_temp', schema);
    kept boolean := false;
BEGIN
    IF tables IS NULL OR NOT pg_has_role(tables, 'USAGE') THEN
        RETURN;
    END IF;
    BEGIN
        IF to_regrole(quote_ident(keeper)) IS NULL THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN BYPASSRLS', keeper);
        END IF;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
        NULL;  -- the user may not make roles, or another process makes this one
    END;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = keeper AND rolbypassrls AND NOT rolsuper AND NOT rolcanlogin) THEN
        BEGIN
            IF NOT pg_has_role(tables, keeper, 'USAGE') THEN
                EXECUTE format('GRANT %I TO %I', keeper, pg_get_userbyid(tables));
            END IF;
            FOR entry IN
                SELECT format(
                    CASE relkind WHEN 'r' THEN 'GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO %I'
                        ELSE 'GRANT USAGE ON SEQUENCE %I TO %I' END, relname, keeper
                ) AS privileges
                FROM pg_class WHERE relnamespace = schema::regnamespace AND relowner = tables AND relname <> 'tokens'
                  AND CASE relkind WHEN 'r' THEN NOT has_table_privilege(keeper, oid, 'DELETE')
                      WHEN 'S' THEN NOT has_sequence_privilege(keeper, oid, 'USAGE') END
            LOOP
                EXECUTE entry.privileges;
            END LOOP;
            kept := true;
        EXCEPTION WHEN insufficient_privilege THEN
            NULL;
        END;
    END IF;
    FOR entry IN
        SELECT oid::regprocedure AS signature, kept AND proowner = tables AS moves,
            (prosecdef OR prorettype = 'trigger'::regtype) AND 'search_path=' || path <> ALL(coalesce(proconfig, '{}'))
                AS searches,
            proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0) AS open
        FROM pg_proc
        WHERE pronamespace = schema::regnamespace AND proowner IN (tables, to_regrole(quote_ident(keeper)))
          AND proname = ANY(ours)
    LOOP
        IF entry.searches THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %s', entry.signature, path);
        END IF;
        IF entry.moves THEN
            IF NOT has_schema_privilege(keeper, schema, 'CREATE') THEN  -- the next command demands it of the new owner
                EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', schema, keeper);
            END IF;
            EXECUTE format('ALTER FUNCTION %s OWNER TO %I', entry.signature, keeper);
        END IF;
        IF entry.open THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', entry.signature);
        END IF;
    END LOOP;
    IF kept AND has_schema_privilege(keeper, schema, 'CREATE') THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %I', schema, keeper);
    END IF;
    -- A role that reads chats is one of the API, also of a version before.
    FOR entry IN
        SELECT pg_proc.oid::regprocedure AS signature, grantee::regrole AS role FROM pg_proc CROSS JOIN (
            SELECT DISTINCT grantee FROM pg_class CROSS JOIN aclexplode(relacl)
            WHERE oid = to_regclass('chats') AND grantee NOT IN (0, relowner)
        ) AS roles
        WHERE pronamespace = schema::regnamespace AND proname = ANY('{CALLED}')
          AND NOT has_function_privilege(grantee, pg_proc.oid, 'EXECUTE')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', entry.signature, entry.role);
    END LOOP;
    FOR entry IN
        SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', datname) AS revoke
        FROM pg_database WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE') AND (
            datacl IS NULL OR EXISTS (SELECT FROM aclexplode(datacl) WHERE grantee = 0 AND privilege_type = 'TEMPORARY')
        )
        UNION ALL
        SELECT format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', nspname)
        FROM pg_namespace CROSS JOIN aclexplode(nspacl)
        WHERE nspname = schema AND pg_has_role(nspowner, 'USAGE') AND grantee = 0 AND privilege_type = 'CREATE'
    LOOP
        EXECUTE entry.revoke;
    END LOOP;
END
$$
"""
_TABLES = """
SELECT relname, pg_has_role($1, relowner, 'MEMBER') AS owned,
    has_table_privilege($1, pg_class.oid, 'SELECT') AS reads,
    has_table_privilege($1, pg_class.oid, 'INSERT') AS inserts,
    has_any_column_privilege($1, pg_class.oid, 'UPDATE') AS updates,
    has_table_privilege($1, pg_class.oid, 'UPDATE') AS updates_all,
    has_table_privilege($1, pg_class.oid, 'DELETE') AS deletes
FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid AND polname = 'by_owner'
WHERE relnamespace = to_regnamespace(current_schema())
"""
# From the leases, the API reads how old a standby's data are (standby.py).
_SEES_LEASES = "SELECT has_column_privilege($1, 'replicas', 'lease_until', 'SELECT')"
_REACHES = "SELECT has_schema_privilege($1, current_schema(), 'USAGE')"
_GET_KEY = "SELECT inner_pad, outer_pad FROM signing_key"
_UNCALLABLE = """
SELECT oid::regprocedure AS signature FROM pg_proc
WHERE pronamespace = to_regnamespace(current_schema()) AND proname = ANY($2)
  AND NOT has_function_privilege($1, oid, 'EXECUTE')
"""
_CHANGE = """
DO $$
BEGIN
    EXECUTE format('{change} %I', '{role}');
END
$$
"""


def policies_of(tables: "Iterable[StoredTable]") -> str:
    """Returns the SQL that creates missing policies; tables without an owner, and `closed` tables, need none."""
    paths = {table.name: each.path for table in tables if (each := table.ownership).path and not each.closed}
    return POLICIES % {"paths": ", ".join(f"('{name}', '{path}')" for name, path in sorted(paths.items()))}


def hardening() -> str:
    """Returns the SQL that restricts functions' rights, and lets the API's roles call the functions in `sql/called`."""
    called = ",".join(functions(called=True))
    return _HARDEN.replace("{CALLED}", f"{{{called}}}").replace("{OURS}", f"{{{','.join(functions())}}}")


async def embedded_api_url(url: str) -> str:
    """Returns the URL of the API's role in the embedded Postgres at `url`. Creates the role if it is missing."""
    async with single_connection(url) as connection:
        await connection.execute(_CREATE_ROLE)
    parts = urlsplit(url)
    return parts._replace(netloc=f"{API_ROLE}@{parts.netloc.rpartition('@')[2]}").geturl()


async def admit(url: str, api_url: str) -> SigningKey:
    """Grants the role of `api_url` exactly the rights that the API needs in the database at `url`, which has the newest
    revision. Returns the key that signs the owners in statements. Raises ConfigError if the role bypasses policies.
    """
    async with checked_role(url, api_url) as (connection, name, tables):
        await connection.execute(hardening())
        quoted = name.replace("'", "''")
        for table in tables:
            for change in _changes(table):
                await connection.execute(_CHANGE.format(role=quoted, change=change))
        uncallable = await connection.fetch(_UNCALLABLE, name, functions(called=True))
        missing = [f"EXECUTE ON FUNCTION {each['signature']}" for each in uncallable]
        if not await connection.fetchval(_SEES_LEASES, name):
            missing.append("SELECT (id, lease_until) ON replicas")
        if not await connection.fetchval(_REACHES, name):
            missing.append(f"USAGE ON SCHEMA {await connection.fetchval('SELECT quote_ident(current_schema())')}")
        for privileges in missing:
            await connection.execute(_CHANGE.format(role=quoted, change=f"GRANT {privileges} TO"))
        (key,) = await connection.fetch(_GET_KEY)
        return SigningKey(key["inner_pad"], key["outer_pad"])


@asynccontextmanager
async def checked_role(url: str, api_url: str) -> AsyncIterator[tuple[Any, str, Sequence[Any]]]:
    """Yields a connection to `url`, the name of the role of `api_url`, and this role's privileges on each table."""
    try:
        async with single_connection(api_url, statement_cache_size=0) as connection:  # a pooler may be in between
            (role,) = await connection.fetch(_ROLE)
        # Postgres refuses equal grants that two processes make at once.
        async with single_connection(url) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            tables = await connection.fetch(_TABLES, role["rolname"])
            if role["unlimited"] or any(table["owned"] for table in tables):
                raise ConfigError(
                    f"TURNSTREAM_API_DATABASE_URL names the role {role['rolname']}, to which row-level security"
                    " does not apply; it must be no superuser, have no BYPASSRLS, and own no table of turnstream."
                )
            yield connection, role["rolname"], tables
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"TURNSTREAM_API_DATABASE_URL names a role that cannot be used: {error}") from error


def _changes(table: Mapping[str, Any]) -> Sequence[str]:
    """Returns the GRANT and REVOKE statements, without the role, that give the role its intended privileges."""
    name, every = table["relname"], all(table[each] for each in ("reads", "inserts", "updates_all", "deletes"))
    if name not in NARROW:
        return [] if every else [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO"]
    if table["reads"] and table["updates"] and not (table["updates_all"] or table["deletes"]):
        return []
    return [f"REVOKE ALL ON {name} FROM", f"GRANT {NARROW[name]} ON {name} TO"]

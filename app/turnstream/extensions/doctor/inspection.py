"""Reads facts about a Postgres, without changing it, and finds whether turnstream can work with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from turnstream.domain.errors import ConfigError
from turnstream.libraries.oldest_transaction import OLDEST_TRANSACTION
from turnstream.storage.database import plain_url, single_connection
from turnstream.storage.row_security import checked_role
from turnstream.storage.rows import OWNER_RUNNING_TURNS, REPLICA_TURNS

_FACTS = """
SELECT current_setting('server_version') AS version, current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::bool AS read_only,
    coalesce(has_schema_privilege(current_schema(), 'CREATE'), has_database_privilege(current_database(), 'CREATE'))
        AS may_create,
    current_setting('fsync')::bool AND current_setting('full_page_writes')::bool AS durable,
    current_setting('synchronous_commit') <> 'off' AS waits_for_disk,
    current_setting('idle_session_timeout') AS idle_timeout,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0) AS connections,
    clock_timestamp() AS clock
"""
_LONG_OPEN = 600.0  # seconds
# Values that are not compared: replicas may differ in REPLICA_TURNS, and `plans` contains OWNER_RUNNING_TURNS.
_NO_DIGESTS = {OWNER_RUNNING_TURNS, REPLICA_TURNS}
# `to_jsonb`, because tables of an older version lack the column `configuration`.
_REPLICAS = "SELECT to_jsonb(replicas)->>'configuration' AS configuration FROM replicas WHERE lease_until > now()"


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """Facts about a Postgres. `connections` are the connections that ordinary users may open. `unlike` lists configured
    values that differ between live replicas. `clock_ahead` is in seconds, and negative if the clock of Postgres is
    behind.
    """

    version: str
    encoding: str
    standby: bool
    read_only: bool
    may_create: bool
    durable: bool
    waits_for_disk: bool
    idle_timeout: str
    connections: int
    clock_ahead: float
    replicas: int
    unlike: Sequence[str]
    oldest_transaction: float  # seconds

    def faults(self) -> Mapping[str, str]:
        """Returns the faults that prevent the server from running, each with its remedy."""
        wrong = {
            "it is a standby": ("name the primary in DATABASE_URL", self.standby),
            "it is read-only": ("set default_transaction_read_only to off", self.read_only and not self.standby),
            f"its encoding is {self.encoding}": ("make a database with the encoding UTF8", self.encoding != "UTF8"),
            "its user may not create tables": ("GRANT CREATE ON SCHEMA (or ON DATABASE) to it", not self.may_create),
        }
        return {what: remedy for what, (remedy, is_so) in wrong.items() if is_so}

    def notes(self) -> Mapping[str, str]:
        """Returns the findings that are a risk or a cost, each with its remedy."""
        odd = {
            f"the live replicas differ in their {', '.join(self.unlike)}": (
                "start all with the same configuration; it is right only during a deploy",
                bool(self.unlike),
            ),
            "a crash of its machine may damage it": ("set fsync and full_page_writes to on", not self.durable),
            "a crash of its machine loses the last moments": (
                "set synchronous_commit to on",
                not self.waits_for_disk,
            ),
            f"it ends sessions that are idle for {self.idle_timeout}": (
                "set idle_session_timeout to 0 for this user",
                self.idle_timeout != "0",
            ),
            f"a transaction is open for {self.oldest_transaction / 60:.0f} minutes, so VACUUM removes nothing newer": (
                "look for it in pg_stat_activity and pg_prepared_xacts, and end it",
                self.oldest_transaction > _LONG_OPEN,
            ),
        }
        return {what: remedy for what, (remedy, is_so) in odd.items() if is_so}


async def inspect_postgres(url: str) -> PostgresFacts:
    """Reads the facts of the Postgres at `url`. Raises ConfigError if Postgres does not answer."""
    try:
        async with single_connection(plain_url(url)) as connection:
            before = datetime.now(UTC)
            facts = dict((await connection.fetch(_FACTS))[0])
            middle = before + (datetime.now(UTC) - before) / 2
            has_tables = await connection.fetchval("SELECT to_regclass('replicas') IS NOT NULL")
            replicas = await connection.fetch(_REPLICAS) if has_tables else []
            oldest = await connection.fetchval(OLDEST_TRANSACTION.sql)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"Postgres does not answer: {error}.") from error
    ahead = (facts.pop("clock") - middle).total_seconds()
    published = [json.loads(row["configuration"]) for row in replicas if row["configuration"] is not None]
    kinds = sorted({kind for each in published for kind in each} - _NO_DIGESTS)
    unlike = [kind for kind in kinds if len({each.get(kind) for each in published}) > 1]
    return PostgresFacts(**facts, clock_ahead=ahead, replicas=len(replicas), unlike=unlike, oldest_transaction=oldest)


# Returns privileges of the role $1 that weaken row-level security, each with its remedy.
_GAPS = """
WITH functions AS (
    SELECT * FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner
    WHERE pronamespace = to_regnamespace(current_schema()) AND (prosecdef OR prorettype = 'trigger'::regtype)
      AND EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('chats') AND pg_has_role(relowner, proowner, 'MEMBER'))
)
SELECT gap, remedy FROM (VALUES
    ('it may make temporary tables', format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()),
        has_database_privilege($1, current_database(), 'TEMPORARY')),
    ('it may create in the schema', format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema()),
        has_schema_privilege($1, current_schema(), 'CREATE')),
    ('functions of the tables run as a superuser or as a role with a login',
        'let the user of DATABASE_URL make roles with BYPASSRLS, or make it (docs/postgres.md, The second wall)',
        EXISTS (SELECT FROM functions WHERE rolsuper OR rolcanlogin))
) AS each (gap, remedy, is_so) WHERE is_so
"""


async def gaps(url: str, api_url: str) -> Sequence[str]:
    """Returns the privileges of the role of `api_url` that weaken row-level security, each with its remedy. Nothing is
    changed. Raises ConfigError in the same cases as `admit`.
    """
    async with checked_role(url, api_url) as (connection, name, _):
        return [f"{row['gap']}: {row['remedy']}" for row in await connection.fetch(_GAPS, name)]

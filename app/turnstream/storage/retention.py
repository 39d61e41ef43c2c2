"""Retention: deletes rows by age in small steps, and chooses the replica that does this work."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from turnstream.kit.clock import CLOCK
from turnstream.storage.database import LONG, Database, Statement, Transaction

ROWS: Final = 1000  # rows that one statement reads, if each row is small
NO_ID: Final = UUID(int=0)  # sorts before all other ids


def walk_of(table: str, key: Sequence[str], old: str, *, within: str = "true") -> Statement:
    """Returns a statement that reads up to `most` rows after a position in the order of `key` (columns of an index),
    and deletes the `old` rows. The statement takes as long in a large table as in a small table, however many rows
    stay. Its row has the number `removed` and the new position; at the end there is no row.
    """
    columns, place = ", ".join(key), ", ".join(f":{name}" for name in key)
    return Statement(
        f"""
        WITH passed AS MATERIALIZED (
            SELECT ctid AS row, {columns}, ({old}) AS is_old FROM {table}
            WHERE ({columns}) > ({place}) AND {within} ORDER BY {columns} LIMIT :most
        ), gone AS (
            DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT row FROM passed WHERE is_old)) AND ({old})
            RETURNING {key[0]}
        )
        SELECT {columns}, (SELECT count(*) FROM gone) AS removed FROM passed
        ORDER BY {", ".join(f"{name} DESC" for name in key)} LIMIT 1
        """,
        timeout=LONG,
    )


async def walk(
    database: Database | Transaction, statement: Statement, begin: Mapping[str, Any], most: int, **values: Any
) -> AsyncGenerator[int, None]:
    """Repeats the statement, and yields how many rows it deletes each time. `begin` is a position before all rows."""
    place = dict(begin)
    while (row := await database.row(statement, most=most, **place, **values)) is not None:
        yield row["removed"]
        place = {name: row[name] for name in place}


# One replica owns a sweep until the sweep is due again. While it works, the replica postpones the due time. If it dies,
# another replica claims the sweep at the due time.
CLAIM_SWEEP = Statement(
    """
    INSERT INTO sweeps (name, due_at) VALUES (:name, now() + :lease)
    ON CONFLICT (name) DO UPDATE SET due_at = EXCLUDED.due_at WHERE sweeps.due_at <= now()
    RETURNING name
    """
)
POSTPONE_SWEEP = Statement("UPDATE sweeps SET due_at = now() + :wait WHERE name = :name RETURNING name")


class Aged(NamedTuple):
    """Rows of a table with a maximum age. The statement `delete` walks over these rows from the position `begin` on."""

    delete: Statement
    begin: Mapping[str, Any]
    most: int


def aged(table: str, begin: Mapping[str, Any], since: str = "created_at", most: int = ROWS) -> Aged:
    """Describes rows with a maximum age. `begin` has the columns of an index, with values before all rows. The first
    column is an id with its time of creation, so the walk skips younger rows. The age counts from `since`, which may be
    later: the time of a repeated upload, of a request to an older turn, of a webhook's delivery.
    """
    key = [*begin]
    walked = walk_of(table, key, f"{since} < now() - CAST(:age AS interval)", within=f"{key[0]} < :before")
    return Aged(walked, begin, most)


AGED_KEYS: Final = aged("idempotency_keys", {"turn_id": NO_ID, "owner": "", "key": ""})
AGED_WITHDRAWN_KEYS: Final = Aged(
    walk_of(
        "idempotency_keys", ["owner", "key"], "created_at < now() - CAST(:age AS interval)", within="turn_id IS NULL"
    ),
    {"owner": "", "key": ""},
    ROWS,
)

# A use of a tool set updates `used_at` if it is more than an hour old (`keep_tool_set`), so a set that is two hours old
# belongs to no uncommitted turn. The subquery reads the next digest in the order of the index. With an equality, the
# planner may read the whole table if all turns share a few sets. The feed of an owner shows deleted chats for
# DELETIONS_KEPT; the sweep removes their rows later, so that no reader misses a row.
DELETIONS_KEPT = timedelta(days=30)
SWEEP_DELETED_CHATS = walk_of("deleted_chats", ["owner", "chat_id"], "deleted_at < now() - CAST(:kept AS interval)")
SWEEP_TOOL_SETS = walk_of(
    "tool_sets",
    ["owner", "digest"],
    """used_at < now() - interval '2 hours' AND digest IS DISTINCT FROM (
        SELECT tool_set FROM turns WHERE tool_set >= digest ORDER BY tool_set LIMIT 1
    )""",
)


class Sweeps:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, name: str, lease: float) -> bool:
        """Claims the sweep for `lease` seconds. Returns False if the sweep is not due."""
        return await self._database.row(CLAIM_SWEEP, name=name, lease=timedelta(seconds=lease)) is not None

    async def postpone(self, name: str, seconds: float) -> None:
        await self._database.row(POSTPONE_SWEEP, name=name, wait=timedelta(seconds=seconds))


def aged_rows(database: Database, rows: Aged, days: float) -> AsyncGenerator[int, None]:
    """Deletes rows older than `days`."""
    age = timedelta(days=days)
    before = UUID(int=max(0, int((CLOCK.now() - age).timestamp() * 1000)) << 80)
    return walk(database, rows.delete, rows.begin, rows.most, before=before, age=age)


async def old_keys(database: Database, days: float) -> AsyncGenerator[int, None]:
    """Deletes idempotency keys older than `days`."""
    for rows in (AGED_KEYS, AGED_WITHDRAWN_KEYS):
        async for removed in aged_rows(database, rows, days):
            yield removed


def old_deletions(database: Database) -> AsyncGenerator[int, None]:
    """Deletes the rows about chats that were deleted long ago."""
    kept = DELETIONS_KEPT + timedelta(days=1)
    return walk(database, SWEEP_DELETED_CHATS, {"owner": "", "chat_id": NO_ID}, ROWS, kept=kept)


def unused_tool_sets(database: Database) -> AsyncGenerator[int, None]:
    """Deletes tool sets that no turn uses."""
    return walk(database, SWEEP_TOOL_SETS, {"owner": "", "digest": b""}, ROWS)

"""Deletes uploads to which no turn refers."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from turnstream.kit.clock import CLOCK
from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.retention import NO_ID, ROWS
from turnstream.storage.rows import MAY_NAME_UPLOADS, OPEN_STATUSES

KEPT: Final = 24 * 3600.0  # seconds within which an upload must be sent with a message

GET_OLD_UPLOADS = Statement(
    """
    SELECT id FROM uploads
    WHERE id > :after AND created_at < now() - make_interval(secs => :kept) ORDER BY id LIMIT :most
    """,
    timeout=LONG,
)
# Blocks that may have files. Any text in the form of an id counts as a reference, even in the layouts of answers,
# because it is the lesser error to keep an unused upload.
_FILES: Final = f"{MAY_NAME_UPLOADS} AND data IS NOT NULL"
_IDS: Final = "LATERAL regexp_matches(content, '[0-9a-f]{8}-[0-9a-f-]{27}', 'g') AS found"


def _named(table: str, key: Sequence[str], content: str, condition: str) -> Statement:
    """Returns a statement that reads the ids in up to `most` rows after a position in the order of `key`, and the new
    position.
    """
    columns, place = ", ".join(key), ", ".join(f":{name}" for name in key)
    return Statement(
        f"""
        WITH passed AS MATERIALIZED (
            SELECT {columns}, {content} AS content FROM {table}
            WHERE ({columns}) > ({place}) AND {condition} ORDER BY {columns} LIMIT :most
        )
        SELECT {columns}, ARRAY(SELECT DISTINCT found[1] FROM passed, {_IDS}) AS ids FROM passed
        ORDER BY {", ".join(f"{name} DESC" for name in key)} LIMIT 1
        """,
        timeout=LONG,
    )


# Turns are read in the order of their creation, so turns that are added during the read come last.
NAMED: Final[Sequence[tuple[Statement, Mapping[str, Any]]]] = (
    (
        _named("asks", ["turn_id", "round", "tool_use_id"], "answer->>'layout'", "answer->>'layout' IS NOT NULL"),
        {"turn_id": NO_ID, "round": 0, "tool_use_id": ""},
    ),
    (_named("blocks", ["turn_id", "index"], "data::text", _FILES), {"turn_id": NO_ID, "index": -1}),
)
# Checks the references again in turns that were added after the references were read, and in turns that may have
# changed.
DELETE_UNNAMED = Statement(
    f"""
    WITH texts AS (
        SELECT data::text AS content FROM blocks WHERE {_FILES} AND turn_id >= :since
        UNION ALL
        SELECT data::text FROM turns JOIN blocks ON turn_id = turns.id WHERE {_FILES} AND status IN {OPEN_STATUSES}
        UNION ALL
        SELECT answer->>'layout' FROM turns JOIN asks ON turn_id = turns.id
        WHERE answer->>'layout' IS NOT NULL AND status IN {OPEN_STATUSES}
    ), named AS MATERIALIZED (
        SELECT DISTINCT found[1] AS id FROM texts, {_IDS}
    )
    DELETE FROM uploads
    WHERE id = ANY(CAST(:ids AS uuid[])) AND created_at < now() - make_interval(secs => :kept)
        AND NOT EXISTS (SELECT FROM named WHERE named.id = uploads.id::text)
    RETURNING id
    """,
    timeout=LONG,
)

_CANDIDATES = 20_000  # uploads for which all references are read once; their ids need some megabytes of memory
_STEP = 100  # uploads that are deleted at once; an upload may have megabytes
_MARGIN = 3_600_000  # the largest difference between the clocks of replicas, in milliseconds


async def unused_uploads(database: Database, kept: float) -> AsyncGenerator[int, None]:
    """Deletes uploads that are older than `kept` seconds and to which no turn refers. References have no index by
    upload, so all references are read in portions, once for many uploads.
    """
    after: UUID | None = NO_ID
    while after is not None:
        since = UUID(int=max(0, int(CLOCK.seconds() * 1000) - _MARGIN) << 80)
        unnamed: set[str] = set()
        while after is not None and len(unnamed) < _CANDIDATES:
            rows = await database.rows(GET_OLD_UPLOADS, after=after, most=ROWS, kept=kept)
            unnamed.update(str(row["id"]) for row in rows)
            after = rows[-1]["id"] if rows else None
            yield 0
        for statement, begin in NAMED:
            place = begin
            while unnamed and (row := await database.row(statement, most=ROWS, **place)) is not None:
                unnamed.difference_update(row["ids"])
                place = {name: row[name] for name in begin}
                yield 0
        found = sorted(unnamed)
        for start in range(0, len(found), _STEP):
            some = found[start : start + _STEP]
            yield len(await database.rows(DELETE_UNNAMED, ids=some, since=since, kept=kept))

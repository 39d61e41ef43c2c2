"""Reads turns and tool results for the API and the engine, and requests the cancellation of turns."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from turnstream.domain.asks import Ask, Steer
from turnstream.domain.blocks import CallKey
from turnstream.domain.errors import ClaimLost, Conflict, NotFound, RequestRefused
from turnstream.domain.turns import ENDED, WITHDRAWN, Turn
from turnstream.kit.offload import BLOCK, offload
from turnstream.storage.contents import ASKS, BLOCKS, STEERS, TURNS, SealedColumns
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.rows import (
    JOBS,
    OPEN_STATUSES,
    PRELIMINARY,
    TOOLS,
    ask_from,
    block_from,
    jobs_from,
    requests_from,
    round_from,
    steer_from,
    turn_from,
)

T = TypeVar("T")

WHOLE_PATH = 1_000_000
# The most bytes of the turns on one page.
_PAGE_BYTES = 8_000_000

_COLUMNS = f"""turns.id, turns.chat_id, turns.parent_id, turns.role, turns.status, turns.request,
    {TOOLS} AS tools, turns.attempt, turns.cancel_requested, turns.recoveries, turns.deaths, turns.asked,
    turns.arrivals, turns.hook_failures, turns.stop_reason, turns.error, turns.usage, turns.created_at,
    turns.started_at, turns.ended_at, turns.forked_from, turns.lineage, {PRELIMINARY}"""

reads_turns = partial(Statement, opens=[TURNS])
GET_TURN = reads_turns(
    f"SELECT {_COLUMNS} FROM turns JOIN chats ON chats.id = chat_id"
    " WHERE turns.id = :turn AND chat_id = :chat AND owner = :owner"
)
# Orders by the time of the database first, because ids have the times of replicas, whose clocks may differ.
GET_NEWEST = Statement(
    "SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id WHERE chat_id = :chat AND owner = :owner"
    " ORDER BY turns.created_at DESC, turns.id DESC LIMIT 1"
)
GET_NEWEST_THROUGH = Statement(
    """
    WITH RECURSIVE below AS (
        SELECT id, created_at FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.created_at FROM turns JOIN below ON turns.parent_id = below.id AND turns.chat_id = :chat
    )
    SELECT id FROM below ORDER BY created_at DESC, id DESC LIMIT 1
    """
)
# SQL for the approximate bytes of a turn in memory: its longest columns, and a constant for each block.
_SIZE = f"""coalesce(octet_length(turns.request::text), 0) + coalesce(octet_length(({TOOLS})::text), 0) + (
        SELECT coalesce(sum(1000 + octet_length(text) + coalesce(octet_length(data::text), 0)
            + coalesce(octet_length(client_data::text), 0)), 0) FROM blocks WHERE turn_id = turns.id
    )"""
# A page stops before a turn that would exceed `:bytes`, but has two turns or more: a client may already have the first.
GET_PATH = reads_turns(
    f"""
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :leaf AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.parent_id, path.depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
        WHERE path.depth + 1 < :limit
    ), sized AS (
        SELECT path.id, depth, sum({_SIZE}) OVER (ORDER BY depth) AS bytes FROM path JOIN turns ON turns.id = path.id
    )
    SELECT {_COLUMNS}, depth FROM sized JOIN turns ON turns.id = sized.id
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE depth <= 1 OR bytes <= CAST(:bytes AS bigint)
    ORDER BY depth DESC
    """
)
# Reads the turns after `after` on the path to `leaf`, oldest first. There are no rows if `after` is not on that path.
GET_PATH_AFTER = reads_turns(
    f"""
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :leaf AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.parent_id, path.depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
        WHERE path.id <> :after
    ), page AS (
        SELECT id, depth FROM path WHERE id <> :after AND EXISTS (SELECT FROM path WHERE id = :after)
        ORDER BY depth DESC LIMIT :limit
    ), sized AS (
        SELECT page.id, depth, sum({_SIZE}) OVER (ORDER BY depth DESC) AS bytes,
            row_number() OVER (ORDER BY depth DESC) AS number
        FROM page JOIN turns ON turns.id = page.id
    )
    SELECT {_COLUMNS}, depth FROM sized JOIN turns ON turns.id = sized.id
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE number = 1 OR bytes <= CAST(:bytes AS bigint)
    ORDER BY depth DESC
    """
)
GET_REPLICA = Statement("SELECT replica FROM turns WHERE id = :turn")
# Reads a claimed answer and its user turn.
GET_CLAIMED_TURNS = reads_turns(
    f"""
    WITH RECURSIVE path AS (
        SELECT {_COLUMNS}, 0 AS depth FROM turns WHERE id = :turn AND replica = :replica
        UNION ALL
        SELECT {_COLUMNS}, path.depth + 1 FROM turns JOIN path ON turns.id = path.parent_id WHERE path.depth = 0
    )
    SELECT path.*, owner FROM path JOIN chats ON chats.id = path.chat_id ORDER BY depth DESC
    """
)
GET_PATH_TO = reads_turns(
    f"""
    WITH RECURSIVE path AS (
        SELECT {_COLUMNS}, 0 AS depth FROM turns WHERE id = :leaf
        UNION ALL
        SELECT {_COLUMNS}, path.depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
    )
    SELECT * FROM path ORDER BY depth DESC
    """
)
# Siblings of roots have their own query: Postgres uses no index for a comparison with a nullable parent.
GET_SIBLINGS = Statement(
    """
    WITH wanted AS MATERIALIZED (
        SELECT id, chat_id, parent_id FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))
    ), found AS (
        SELECT sibling.id, sibling.created_at, wanted.id AS turn FROM wanted
        JOIN turns AS sibling ON sibling.chat_id = wanted.chat_id AND sibling.parent_id = wanted.parent_id
        UNION ALL
        SELECT sibling.id, sibling.created_at, wanted.id FROM wanted
        JOIN turns AS sibling ON sibling.chat_id = wanted.chat_id AND sibling.parent_id IS NULL
        WHERE wanted.parent_id IS NULL
    )
    SELECT id, turn FROM found ORDER BY created_at, id
    """
)
GET_ROOT = Statement(
    """
    WITH RECURSIVE path AS (
        SELECT id, parent_id FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.parent_id FROM turns JOIN path ON turns.id = path.parent_id
    )
    SELECT id FROM path WHERE parent_id IS NULL
    """
)
GET_CHILDREN = Statement("SELECT id FROM turns WHERE chat_id = :chat AND parent_id = :turn ORDER BY created_at, id")


def _of_turns(
    columns: str, table: str, order: str, condition: str = "true", opens: Sequence[SealedColumns] = ()
) -> Statement:
    """Reads turn by turn through the index. OFFSET prevents the planner from reading the whole table for many turns."""
    return Statement(
        f"""
        SELECT found.* FROM unnest(CAST(:turns AS uuid[])) AS wanted (id) CROSS JOIN LATERAL (
            SELECT {columns} FROM {table} WHERE turn_id = wanted.id AND {condition} OFFSET 0
        ) AS found
        ORDER BY turn_id, {order}
        """,
        opens=opens,
    )


GET_ROUNDS = _of_turns("*", "rounds", "number, attempt")
BLOCK_COLUMNS = """blocks.turn_id, blocks.index, blocks.round, blocks.attempt, blocks.type, blocks.text, blocks.data,
    blocks.tool_use_id, blocks.name, blocks.is_error, blocks.interrupted, blocks.notes,
    blocks.client_data"""
GET_BLOCKS = _of_turns(BLOCK_COLUMNS, "blocks", "index", opens=[BLOCKS])
GET_ASKS = _of_turns("*", "asks", "round, tool_use_id", opens=[ASKS])
STEER_COLUMNS = "steers.*, blocks::text AS stored"
GET_STEERS = _of_turns(STEER_COLUMNS, "steers", "id", "taken_at IS NULL", opens=[STEERS])
TURN_EXISTS = Statement("SELECT id FROM turns WHERE id = :turn")
GET_ARRIVALS = Statement("SELECT arrivals FROM turns WHERE id = :turn")
GET_JOBS = reads_turns(f"SELECT id, {JOBS} FROM turns WHERE id = :turn")

GET_STARTED_CALLS = Statement("SELECT round, tool_use_id FROM tool_calls WHERE turn_id = :turn AND state = 'started'")
# A turn that never ran is cancelled at once, unless an open turn precedes it, because turns of a branch end in their
# order. If the user has cancelled the turn (`withdraws`), later requests omit its message.
CANCEL_TURN = Statement(
    f"""
    WITH wanted AS (
        SELECT turns.id, turns.status = 'queued' AND turns.attempt = 0 AND turns.arrivals = 0 AS waits, NOT EXISTS (
            SELECT FROM turns AS question JOIN turns AS before ON before.id = question.parent_id
            WHERE question.id = turns.parent_id AND before.status IN {OPEN_STATUSES}
        ) AS is_first
        FROM turns WHERE id = :turn AND status IN {OPEN_STATUSES} FOR NO KEY UPDATE
    )
    UPDATE turns
    SET cancel_requested = true,
        status = CASE WHEN status = 'waiting' THEN 'queued' WHEN waits AND is_first THEN 'cancelled' ELSE status END,
        stop_reason = CASE
            WHEN waits AND CAST(:withdraws AS bool) THEN '{WITHDRAWN}'
            WHEN waits AND is_first THEN coalesce(stop_reason, 'cancelled') ELSE stop_reason
        END,
        ended_at = CASE WHEN waits AND is_first THEN now() END
    FROM wanted WHERE turns.id = wanted.id
    RETURNING status
    """
)


class TurnReads:
    """Reads turns, even on a standby. An open turn and its contents come from one snapshot, so that the two fit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, owner: str, chat: UUID, turn: UUID) -> Turn:
        """Returns the turn with its rounds and blocks. Raises NotFound."""
        row = await self._database.row(GET_TURN, owner=owner, chat=chat, turn=turn)
        if row is None:
            raise NotFound(f"There is no turn {turn} in chat {chat}.")
        if row["role"] == "assistant" and row["attempt"] == 0:
            return turn_from(row)
        if row["status"] in ENDED:
            return (await _with_contents(self._database, [row]))[0]
        async with self._database.transaction(snapshot=True) as moment:
            row = await moment.row(GET_TURN, owner=owner, chat=chat, turn=turn)
            if row is None:
                raise NotFound(f"There is no turn {turn} in chat {chat}.")
            return (await _with_contents(moment, [row]))[0]

    async def replica_of(self, turn: UUID) -> UUID | None:
        """Returns the replica that runs the turn; None if the turn is not running."""
        row = await self._database.row(GET_REPLICA, turn=turn)
        return None if row is None else row["replica"]

    async def claimed(self, turn: UUID, replica: UUID) -> tuple[str, list[Turn]]:
        """Returns the owner of a turn that `replica` has claimed, and the last two turns of its path: the user turn and
        the claimed turn. Raises ClaimLost if the replica does not have the claim.
        """
        rows = await self._database.rows(GET_CLAIMED_TURNS, turn=turn, replica=replica)
        if not rows:
            raise ClaimLost(f"turn {turn} no longer belongs to this replica")
        return rows[0]["owner"], await _with_contents(self._database, rows)

    async def path_to(self, leaf: UUID) -> list[Turn]:
        """Returns the path from the root to the ended turn `leaf`. The path is empty if its turns were deleted."""
        return await _with_contents(self._database, await self._database.rows(GET_PATH_TO, leaf=leaf))

    async def refreshed(self, turn: Turn) -> Turn:
        """Returns the turn with the answers, steers and outcomes of jobs that have arrived since its last read.
        `arrivals` is read first: an arrival after that is not counted yet, so it leads to another read.
        """
        row = await self._database.row(GET_ARRIVALS, turn=turn.id)
        arrivals = row["arrivals"] if row else turn.arrivals
        asks = await self._database.rows(GET_ASKS, turns=[turn.id])
        steers = await self._database.rows(GET_STEERS, turns=[turn.id])
        turn = replace(turn, arrivals=arrivals, asks=tuple(map(ask_from, asks)), steers=tuple(map(steer_from, steers)))
        jobs = await self._database.row(GET_JOBS, turn=turn.id) if turn.jobs else None
        return turn if jobs is None else replace(turn, jobs=jobs_from(jobs))

    async def path(self, owner: str, chat: UUID, leaf: UUID, limit: int = WHOLE_PATH) -> list[Turn]:
        """Returns the last turns of the path to `leaf`: at most `limit`, fewer if turns are long. Raises NotFound."""
        async with self._database.transaction(snapshot=True) as moment:
            rows = await moment.rows(GET_PATH, owner=owner, chat=chat, leaf=leaf, limit=limit, bytes=_PAGE_BYTES)
            if not rows:
                raise NotFound(f"There is no turn {leaf} in chat {chat}.")
            return await _with_contents(moment, rows)

    async def path_after(self, owner: str, chat: UUID, after: UUID, leaf: UUID, limit: int) -> tuple[list[Turn], bool]:
        """Returns the first turns after `after` on the path to `leaf` (at most `limit`, fewer if turns are long), and
        whether more turns follow. Raises RequestRefused if `after` is not on that path.
        """
        async with self._database.transaction(snapshot=True) as moment:
            values = {"owner": owner, "chat": chat, "after": after, "leaf": leaf, "limit": limit, "bytes": _PAGE_BYTES}
            rows = await moment.rows(GET_PATH_AFTER, **values)
            if not rows and leaf != after:
                detail = f"`after` must be the id of a turn on the path to {leaf}; {after} is not on it."
                raise RequestRefused(detail, field="after")
            return await _with_contents(moment, rows), bool(rows) and rows[-1]["depth"] > 0

    async def root(self, chat: UUID, turn: UUID) -> UUID | None:
        """Returns the id of the first turn of the path to `turn`."""
        row = await self._database.row(GET_ROOT, chat=chat, turn=turn)
        return row["id"] if row else None

    async def children(self, chat: UUID, turn: UUID) -> list[UUID]:
        """Returns the ids of the children of `turn`, oldest first."""
        return [row["id"] for row in await self._database.rows(GET_CHILDREN, chat=chat, turn=turn)]

    async def exists(self, turn: UUID) -> bool:
        return await self._database.row(TURN_EXISTS, turn=turn) is not None

    async def started_calls(self, turn: UUID) -> frozenset[CallKey]:
        """Returns the round and the id of each call that has started and has no result."""
        rows = await self._database.rows(GET_STARTED_CALLS, turn=turn)
        return frozenset((row["round"], row["tool_use_id"]) for row in rows)

    async def newest(self, owner: str, chat: UUID) -> UUID | None:
        row = await self._database.row(GET_NEWEST, owner=owner, chat=chat)
        return row["id"] if row else None

    async def newest_through(self, chat: UUID, turn: UUID) -> UUID | None:
        """Returns the newest turn among `turn` and its descendants, which is the end of the last used branch."""
        row = await self._database.row(GET_NEWEST_THROUGH, chat=chat, turn=turn)
        return row["id"] if row else None

    async def siblings(self, turns: Sequence[UUID]) -> dict[UUID, list[UUID]]:
        """Returns, for each turn, the ids of all turns with the same parent, this turn included, oldest first."""
        found: dict[UUID, list[UUID]] = defaultdict(list)
        for row in await self._database.rows(GET_SIBLINGS, turns=turns):
            found[row["turn"]].append(row["id"])
        return found


class Turns(TurnReads):
    async def cancel(self, owner: str, chat: UUID, turn: UUID) -> Turn:
        """Requests the cancellation of a turn. An ended turn does not change. Raises NotFound and Conflict."""
        found = await self.get(owner, chat, turn)
        if found.role == "user":
            raise Conflict(
                "A user turn does not run, so it cannot be cancelled; name the assistant turn that answers it.",
                field="turn",
            )
        await self._database.row(CANCEL_TURN, turn=turn, withdraws=True)
        return await self.get(owner, chat, turn)


async def _with_contents(database: Database | Transaction, rows: Sequence[Row]) -> list[Turn]:
    ids = [row["id"] for row in rows]
    blocks = await database.rows(GET_BLOCKS, turns=ids)
    rounds = await database.rows(GET_ROUNDS, turns=ids)
    asks, steers = await asks_and_steers_of(database, rows)

    def turns() -> list[Turn]:
        blocks_of, rounds_of = by_turn(blocks, block_from), by_turn(rounds, round_from)
        requests = requests_from(rows)
        return [
            turn_from(row, rounds_of[row["id"]], blocks_of[row["id"]], asks[row["id"]], steers[row["id"]], requests)
            for row in rows
        ]

    return await offload(BLOCK * len(blocks), turns)


async def asks_and_steers_of(
    database: Database | Transaction, rows: Sequence[Row]
) -> tuple[Mapping[UUID, list[Ask]], Mapping[UUID, list[Steer]]]:
    """Returns the asks and steers of the turns in `rows`. The row of a turn shows whether it has any; most do not."""
    asked = [row["id"] for row in rows if row["asked"]]
    steered = [row["id"] for row in rows if row["arrivals"]]
    asks = await database.rows(GET_ASKS, turns=asked) if asked else ()
    steers = await database.rows(GET_STEERS, turns=steered) if steered else ()
    return by_turn(asks, ask_from), by_turn(steers, steer_from)


def by_turn(rows: Sequence[Row], make: Callable[[Row], T]) -> defaultdict[UUID, list[T]]:
    found: defaultdict[UUID, list[T]] = defaultdict(list)
    for row in rows:
        found[row["turn_id"]].append(make(row))
    return found

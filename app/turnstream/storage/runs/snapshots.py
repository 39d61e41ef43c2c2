"""Snapshots: the rows and the journal of many turns at one moment, for readers of turns that run on other replicas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from turnstream.domain.blocks import Block
from turnstream.domain.turns import Turn
from turnstream.kit.offload import BLOCK, offload
from turnstream.storage.chats.turns import BLOCK_COLUMNS, GET_ROUNDS, asks_and_steers_of, by_turn, reads_turns
from turnstream.storage.contents import BLOCKS
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.rows import PRELIMINARY, block_from, round_from, turn_from
from turnstream.storage.runs.journal import (
    GET_NEW_TEXT,
    GET_NEW_TICKS,
    JournalEntry,
    entries_of,
    entry_from,
    open_block_from,
    opened,
)

# The columns omit the request, because it never changes and may be long.
GET_TURNS = reads_turns(
    f"""
    SELECT id, chat_id, parent_id, role, status, NULL AS request, attempt, cancel_requested, recoveries, deaths,
        asked, arrivals, hook_failures, stop_reason, error, usage, created_at, started_at, ended_at, forked_from,
        lineage, replica, {PRELIMINARY}
    FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))
    """
)
GET_NEW_BLOCKS = Statement(
    f"""
    SELECT {BLOCK_COLUMNS} FROM unnest(CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:counts AS int[]))
        AS known (turn, attempt, count)
    JOIN turns ON turns.id = known.turn
    JOIN blocks ON turn_id = known.turn
        AND index >= CASE WHEN turns.attempt = known.attempt THEN known.count ELSE 0 END
    ORDER BY turn_id, index
    """,
    opens=[BLOCKS],
)


class MirrorPosition(NamedTuple):
    """The content that a view has: the rows of a turn, and the first `length` characters of its open block, which
    `attempt` has written. `complete`: the view has all text of the previous snapshot.
    """

    turn: Turn
    attempt: int = 0
    length: int = 0
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A turn and its open block. The text of `open_block` begins at offset `start`; the view has the text before it."""

    turn: Turn
    open_block: Block | None
    start: int = 0


class Tick(NamedTuple):
    """A row of a replica's log, with a piece of each turn that has new text. Ticks up to `checkpoint` are stored."""

    number: int
    checkpoint: int
    entries: Mapping[UUID, JournalEntry]


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The ticks of a replica's log that no checkpoint has stored, and all ticks from index `new` on, which are new in
    this snapshot. `continues`: the new ticks directly follow the ticks of the previous snapshot.
    """

    ticks: Sequence[Tick] = ()
    new: int = 0
    continues: bool = False

    @property
    def last(self) -> int:
        return self.ticks[-1].number if self.ticks else 0

    def extended(self, ticks: Sequence[Tick]) -> "ReplicaLog":
        """Returns this log, continued by `ticks`. A gap in the numbers means ticks that were deleted or not written."""
        continues = bool(self.ticks) and (not ticks or ticks[0].number == self.last + 1)
        ticks = [*self.ticks, *ticks]
        kept = [tick for tick in ticks if tick.number > min(self.last, ticks[-1].checkpoint)]
        return ReplicaLog(kept, sum(tick.number <= self.last for tick in kept), continues)

    def entries(self, turn: UUID, since: int = 0) -> Iterable[JournalEntry]:
        """Returns the pieces of a turn in the ticks from index `since` on."""
        return (tick.entries[turn] for tick in self.ticks[since:] if turn in tick.entries)


class Snapshots:
    """Takes the snapshots of one mirror. Each snapshot reads the logs of replicas after the last tick that it has seen.
    It reads stored text only if ticks do not suffice: for a new turn or claim, or if unread ticks were deleted.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._logs: Mapping[UUID, ReplicaLog] = {}
        self._followed: Mapping[UUID, UUID] = {}  # turns whose text is complete, each with its replica

    async def take(self, known: Mapping[UUID, MirrorPosition]) -> dict[UUID, Snapshot]:
        """Reads the turns as they are now, without the content that is `known`. The result omits deleted turns."""
        turns = list(known)
        counts = [len(view.turn.blocks) for view in known.values()]
        async with self._database.transaction(snapshot=True) as moment:
            rows = await moment.rows(GET_TURNS, turns=turns)
            attempts = [view.turn.attempt for view in known.values()]
            news = await moment.rows(GET_NEW_BLOCKS, turns=turns, attempts=attempts, counts=counts)
            all_rounds = await moment.rows(GET_ROUNDS, turns=turns)
            logs = await self._read_logs(moment, {row["replica"] for row in rows} - {None})
            on_log = {row["id"] for row in rows if self._is_on_log(row, known[row["id"]], logs)}
            texts = await _stored_text(moment, {turn: view for turn, view in known.items() if turn not in on_log})
            asks, _ = await asks_and_steers_of(moment, rows)
        blocks = await offload(BLOCK * len(news), by_turn, news, block_from)
        rounds, stored = by_turn(all_rounds, round_from), by_turn(texts, entry_from)
        found: dict[UUID, Snapshot] = {}
        followed: dict[UUID, UUID] = {}
        for row in rows:
            id, replica = row["id"], row["replica"]
            before = known[id].turn
            kept = before.blocks if row["attempt"] == before.attempt else ()
            turn = turn_from(row, rounds[id], (*kept, *blocks[id]), asks[id])
            turn = replace(turn, request=before.request)
            log = logs.get(replica, ReplicaLog())
            since = log.new if id in on_log else 0
            entries: Sequence[JournalEntry] = [
                entry for entry in log.entries(id, since) if entry.attempt == turn.attempt
            ]
            entries = [*await opened(self._database.codec, entries), *stored[id]]
            open_block, start = open_block_from(turn, entries, known[id].length)
            found[id] = Snapshot(turn, open_block, start)
            # Otherwise the pieces belong to a hidden block: its round has no row yet, or the view has not applied the
            # previous snapshot.
            if replica and (open_block or all(entry.index != len(turn.blocks) for entry in entries)):
                followed[id] = replica
        self._logs, self._followed = logs, followed
        return found

    def _is_on_log(self, row: Row, known: MirrorPosition, logs: Mapping[UUID, ReplicaLog]) -> bool:
        """Whether the new ticks contain all open text that the view lacks."""
        replica = row["replica"]
        has_all = known.complete and row["attempt"] == known.turn.attempt and self._followed.get(row["id"]) == replica
        return has_all and replica in logs and logs[replica].continues

    async def _read_logs(self, moment: Transaction, replicas: Iterable[UUID]) -> dict[UUID, ReplicaLog]:
        logs = {replica: self._logs.get(replica, ReplicaLog()) for replica in replicas}
        lasts = [log.last for log in logs.values()]
        rows = await moment.rows(GET_NEW_TICKS, replicas=list(logs), lasts=lasts) if logs else ()
        ticks: dict[UUID, list[Tick]] = {replica: [] for replica in logs}
        for row in rows:
            entries = {entry.turn: entry for entry in entries_of(row)}
            ticks[row["replica"]].append(Tick(row["tick"], row["checkpoint"], entries))
        return {replica: log.extended(ticks[replica]) for replica, log in logs.items()}


async def _stored_text(moment: Transaction, known: Mapping[UUID, MirrorPosition]) -> Sequence[Row]:
    if not known:
        return ()
    views = known.values()
    return await moment.rows(
        GET_NEW_TEXT,
        turns=list(known),
        attempts=[view.attempt for view in views],
        indexes=[len(view.turn.blocks) for view in views],
        lengths=[view.length for view in views],
    )

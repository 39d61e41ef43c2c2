"""The queue of a chat for its owner: messages whose turns have not started, and pending steers.

A change and the delivery of a message take the same lock: on the row of the answer, which a claim also locks, or on the
row of the turn that applies a steer. So a message is changed before its delivery or not at all.

For readers of the chat, a changed or moved message, and all later messages, are deleted and created again
(turnstream.storage.chats.chat_changes). The messages keep their ids, and get new places behind all places that readers
know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict, NotFound, RequestRefused
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.extensions.queue.entries import Delivered, EntryKind, Pair, QueueEntry, Recipient, line_of, relinked
from turnstream.kit.ids import new_id
from turnstream.storage.chats.chat_changes import PLACE
from turnstream.storage.chats.chats import GET_CHAT
from turnstream.storage.chats.exchanges import (
    ARRIVE,
    CREATE_EXCHANGE,
    MARK_FOLLOWED,
    STEER,
    TICK,
    Exchanges,
    take_queued_place,
)
from turnstream.storage.chats.turns import GET_BLOCKS, STEER_COLUMNS, by_turn, reads_turns
from turnstream.storage.contents import STEERS
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.rows import OPEN_STATUSES, WITH_TOOLS, block_from, columns_of, steer_from, to_json, turn_from
from turnstream.storage.runs.record import ADD_BLOCKS

# The pairs in the queue. A question that has another answer was delivered with that answer, and a turn that a report
# started has no message, so neither is in the queue.
_PAIRS = """
    SELECT question.id AS question, question.parent_id AS after, question.created_at, turns.id AS answer,
        turns.cancel_requested,
        EXISTS (SELECT FROM steers WHERE turn_id = turns.id AND taken_at IS NULL) AS is_steered
    FROM turns JOIN turns AS question ON question.id = turns.parent_id
    WHERE turns.chat_id = :chat AND turns.status = 'queued' AND turns.attempt = 0 AND NOT EXISTS (
        SELECT FROM turns AS other
        WHERE other.chat_id = :chat AND other.parent_id = question.id AND other.id <> turns.id
    ) AND NOT EXISTS (SELECT FROM steers WHERE turn_id = turns.id AND is_report)
    ORDER BY question.created_at, question.id
"""
GET_PAIRS = Statement(_PAIRS)
LOCK_PAIRS = Statement(_PAIRS + " FOR NO KEY UPDATE OF turns")
GET_STEERS_OF_CHAT = Statement(
    f"""
    SELECT {STEER_COLUMNS} FROM turns JOIN steers ON turn_id = turns.id
    WHERE chat_id = :chat AND status IN {OPEN_STATUSES} AND taken_at IS NULL AND NOT is_report ORDER BY steers.id
    """,
    opens=[STEERS],
)
LOCK_TURN_OF_STEER = Statement(
    """
    SELECT id FROM turns WHERE chat_id = :chat AND id = (SELECT turn_id FROM steers WHERE id = :steer)
    FOR NO KEY UPDATE
    """
)
LOCK_STEERABLE = reads_turns(
    f"""
    SELECT {WITH_TOOLS} FROM turns
    WHERE id = :turn AND status IN {OPEN_STATUSES} AND NOT cancel_requested FOR NO KEY UPDATE OF turns
    """
)
# Finds a message that is no longer in the queue: its first answer, or the turn that received it.
GET_DELIVERY = Statement(
    """
    SELECT answer.id AS turn, NULL AS round, answer.status = 'queued' AND answer.attempt = 0 AS is_cancelled
    FROM turns AS answer WHERE answer.chat_id = :chat AND answer.parent_id = :entry
    UNION ALL
    SELECT turn_id, round, false FROM steers JOIN turns ON turns.id = turn_id LEFT JOIN LATERAL (
        SELECT round FROM blocks
        WHERE blocks.turn_id = steers.turn_id AND type = 'user_text' AND notes->>'steer' = CAST(steers.id AS text)
        LIMIT 1
    ) AS taken ON true
    WHERE steers.id = :entry AND chat_id = :chat AND round IS NOT NULL
    LIMIT 1
    """
)
WAS_WITHDRAWN = Statement(
    """
    SELECT turn_id FROM deleted_turns WHERE turn_id = :entry AND chat_id = :chat
    UNION ALL
    SELECT turn_id FROM steers JOIN turns ON turns.id = turn_id WHERE steers.id = :entry AND chat_id = :chat
    LIMIT 1
    """
)
# Readers of the chat get `turns_deleted`, then the moved turns. Each pair has its own time, after the time of the
# deletion.
PLACE_AGAIN = Statement(
    f"""
    WITH touched AS (
        UPDATE chats
        SET updated_at = greatest(clock_timestamp(), updated_at + interval '1 microsecond')
            + CAST(:pairs AS int) * interval '1 microsecond'
        WHERE id = :chat RETURNING updated_at
    ), noted AS (
        INSERT INTO deleted_turns (turn_id, chat_id, place, deleted_at)
        SELECT id, :chat, {PLACE}, updated_at - CAST(:pairs AS int) * interval '1 microsecond'
        FROM turns, touched WHERE id = ANY(CAST(:turns AS uuid[]) || CAST(:gone AS uuid[]))
    )
    UPDATE turns SET parent_id = parent, created_at = at, ended_at = CASE role WHEN 'user' THEN at END
    FROM (
        SELECT turn, parent, updated_at - (CAST(:pairs AS int) - number) * interval '1 microsecond' AS at
        FROM touched, unnest(CAST(:turns AS uuid[]), CAST(:parents AS uuid[]), CAST(:numbers AS int[]))
            AS moved (turn, parent, number)
    ) AS moved
    WHERE turns.id = turn
    RETURNING turns.id
    """
)
# The descendants of a turn are deleted with the turn, so the turn must be the last in its line.
DELETE_PAIR = Statement(
    """
    DELETE FROM turns WHERE id = :question AND chat_id = :chat AND NOT EXISTS (
        SELECT FROM turns AS next WHERE next.chat_id = :chat AND next.parent_id = :answer
    )
    RETURNING id
    """
)
DELETE_BLOCKS = Statement("DELETE FROM blocks WHERE turn_id = :turn RETURNING index")
CHANGE_STEER = Statement(
    "UPDATE steers SET blocks = CAST(:blocks AS json) WHERE id = :steer RETURNING id",
    seals=[STEERS.named(turn_id="turn", id="steer")],
)
# The row stays without its text, so that a repeated request finds it.
WITHDRAW_STEER = Statement("UPDATE steers SET blocks = '[]', taken_at = now() WHERE id = :steer RETURNING id")
DELETE_STEER = Statement("DELETE FROM steers WHERE id = :steer RETURNING id")
TOUCH_CHAT = Statement(f"UPDATE chats SET {TICK} WHERE id = :chat RETURNING id")
# A repeated POST finds its message at the new position.
KEY_OF_QUEUED = Statement(
    "UPDATE idempotency_keys SET turn_id = :turn, steer_id = :entry WHERE turn_id = :answer RETURNING key"
)
KEY_OF_STEER = Statement(
    """
    UPDATE idempotency_keys SET turn_id = :answer, steer_id = NULL
    WHERE turn_id = :turn AND steer_id = :entry RETURNING key
    """
)
# The key outlasts a withdrawn message, so that a repeated POST does not restore the message.
DETACH_KEY = Statement(
    "UPDATE idempotency_keys SET turn_id = NULL, steer_id = :entry WHERE turn_id = :answer RETURNING key"
)
# A replica of the previous version would send the text of a steer that it has read, even after a change.
GET_OLDER_REPLICA = Statement("SELECT id FROM replicas WHERE NOT edits_queue AND lease_until > now() LIMIT 1")


@dataclass(frozen=True, slots=True)
class Behind:
    """A position in the line: directly behind the message `entry`, or before all other messages if `entry` is None."""

    entry: UUID | None


@dataclass(frozen=True, slots=True)
class Change:
    """The change of an entry; None leaves a member unchanged. `version` is the version that the client has. `request`
    is the request of the answer if a steer becomes a queued message; the owner may have `most_queued` turns in the
    queue. `check_target` may refuse a turn as the target of a steer.
    """

    version: str
    check_target: Callable[[Turn], None]
    blocks: tuple[Block, ...] | None = None
    kind: EntryKind | None = None
    place: Behind | None = None
    request: TurnRequest | None = None
    most_queued: int | None = None


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue of a chat, whose rows are locked."""

    connection: Transaction
    chat: UUID
    entries: Mapping[UUID, QueueEntry]
    pairs: Mapping[UUID, Pair]
    steered: frozenset[UUID]  # questions whose queued answer has pending steers

    async def replace(self, line: Sequence[Pair], new_line: Sequence[Pair], *, edited: UUID | None = None) -> None:
        """Changes `line` to `new_line`. A pair that is only in `line` is deleted."""
        kept = {pair.question for pair in new_line}
        gone = [pair for pair in line if pair.question not in kept]
        moved = relinked(self.pairs, line, new_line, () if edited is None else (edited,))
        await self.connection.rows(
            PLACE_AGAIN,
            chat=self.chat,
            pairs=len(moved),
            turns=[turn for pair in moved for turn in (pair.question, pair.answer)],
            parents=[parent for pair in moved for parent in (pair.after, pair.question)],
            numbers=[number for number in range(1, len(moved) + 1) for _ in range(2)],
            gone=[turn for pair in gone for turn in (pair.question, pair.answer)],
        )
        for pair in gone:
            deleted = await self.connection.row(DELETE_PAIR, chat=self.chat, question=pair.question, answer=pair.answer)
            assert deleted is not None, "a turn follows that is not in the queue"

    async def withdraw(self, entry: QueueEntry) -> None:
        if entry.kind == "steer":
            await self.connection.row(WITHDRAW_STEER, steer=entry.id)
            await self.connection.row(TOUCH_CHAT, chat=self.chat)
        else:
            await self.connection.rows(DETACH_KEY, entry=entry.id, answer=entry.turn)
            await self._take_out(entry)

    async def _take_out(self, entry: QueueEntry) -> None:
        if entry.id in self.steered:
            detail = f"Messages wait for turn {entry.turn}, the answer to this one: withdraw or change them first."
            raise Conflict(detail)
        line = line_of(self.pairs, entry.id)
        await self.replace(line, [pair for pair in line if pair.question != entry.id])

    async def edit(self, entry: QueueEntry) -> None:
        if entry.kind == "steer":
            await self.connection.row(CHANGE_STEER, turn=entry.turn, steer=entry.id, blocks=to_json(entry.blocks))
            await self.connection.row(TOUCH_CHAT, chat=self.chat)
            return
        await self.connection.rows(DELETE_BLOCKS, turn=entry.id)
        await self.connection.rows(ADD_BLOCKS, turn=entry.id, **columns_of(entry.blocks))
        line = line_of(self.pairs, entry.id)
        await self.replace(line, line, edited=entry.id)

    def moves(self, entry: QueueEntry, place: Behind) -> bool:
        """Returns whether the entry has another position than `place`."""
        line, new_line = self._moved(self.pairs[entry.id], place)
        return line != new_line

    def _moved(self, pair: Pair, place: Behind) -> tuple[list[Pair], list[Pair]]:
        """Returns the line of the pair, and the target line. Raises RequestRefused."""
        line = line_of(self.pairs, pair.question)
        others = [other for other in line if other.question != pair.question]
        places = {other.question: number for number, other in enumerate(others, 1)}
        if place.entry is None:
            return line, [pair, *others]
        if place.entry == pair.question or place.entry not in places:
            raise _no_place()
        number = places[place.entry]
        return line, [*others[:number], pair, *others[number:]]

    async def move(self, entry: QueueEntry, place: Behind) -> None:
        line, new_line = self._moved(self.pairs[entry.id], place)
        if line != new_line:
            await self.replace(line, new_line)

    async def steer(self, entry: QueueEntry, check_target: Callable[[Turn], None]) -> None:
        """Turns a queued message into a steer of the open turn that precedes the message's line."""
        if any(block.type != TEXT for block in entry.blocks):
            raise RequestRefused("`kind` must be `queued`: a message to a running turn holds text only.", field="kind")
        target = line_of(self.pairs, entry.id)[0].after
        row = None if target is None else await self.connection.row(LOCK_STEERABLE, turn=target)
        if row is None:
            raise Conflict("No running turn can receive the message.", field="kind")
        check_target(turn_from(row))
        await self.connection.rows(KEY_OF_QUEUED, turn=target, entry=entry.id, answer=entry.turn)
        await self._take_out(entry)
        superseded = to_json(AskAnswer("superseded"))
        await self.connection.rows(STEER, steer=entry.id, turn=target, blocks=to_json(entry.blocks), answer=superseded)
        await self.connection.row(ARRIVE, turn=target)

    async def enqueue(self, owner: str, entry: QueueEntry, request: TurnRequest, place: Behind) -> None:
        """Turns a steer into a queued message that follows the steer's turn."""
        behind = [other for other in self.pairs.values() if other.after == entry.turn]
        line = line_of(self.pairs, behind[-1].question) if behind else []
        if place.entry is not None and place.entry not in {other.question for other in line}:
            raise _no_place()
        # If no position is given, the message follows its turn, which may itself be in the line.
        before_it = {other.question if place.entry else other.answer: i for i, other in enumerate(line, 1)}
        number = before_it.get(place.entry or entry.turn, 0)
        before = line[number - 1].answer if number else entry.turn
        pair = Pair(entry.id, new_id(), before)
        await self.connection.row(DELETE_STEER, steer=entry.id)
        await self.connection.row(MARK_FOLLOWED, turn=before)
        await self.connection.row(
            CREATE_EXCHANGE,
            owner=owner,
            chat=self.chat,
            title=None,
            user_turn=pair.question,
            parent=before,
            assistant_turn=pair.answer,
            request=to_json(request),
            **columns_of(entry.blocks),
        )
        await self.connection.rows(KEY_OF_STEER, turn=entry.turn, entry=entry.id, answer=pair.answer)
        if line[number:]:
            with_new = replace(self, pairs={**self.pairs, pair.question: pair})
            await with_new.replace(line, [*line[:number], pair, *line[number:]])


class QueuedMessages:
    def __init__(self, database: Database, everything: Database) -> None:
        """The connection `everything` is not limited to the owner of the request."""
        self._database = database
        self._everything = everything
        self._exchanges = Exchanges(database)

    async def of_chat(self, owner: str, chat: UUID) -> list[QueueEntry]:
        """Returns the waiting messages: the steers first, then the queued ones in order. Raises NotFound."""
        async with self._database.transaction(snapshot=True) as moment:
            if await moment.row(GET_CHAT, owner=owner, chat=chat) is None:
                raise NotFound(f"There is no chat {chat}.")
            return list((await _read(moment, chat, await moment.rows(GET_PAIRS, chat=chat))).values())

    async def change(self, owner: str, chat: UUID, id: UUID, change: Change) -> QueueEntry:
        """Applies `change` to the entry, and returns the entry. If nothing differs, nothing is written. Raises
        Delivered, Conflict, NotFound, RequestRefused, TooMany.
        """
        await self._check_replicas()
        async with self._exchanges.locked(owner, chat) as (connection, _):
            queue = await _locked(connection, chat, id)
            entry = queue.entries.get(id)
            if entry is None:
                raise await _missing(connection, chat, id)
            wanted = replace(entry, blocks=change.blocks or entry.blocks, kind=change.kind or entry.kind)
            if wanted.kind == "steer" and change.place is not None:
                raise RequestRefused("`after` must be left out: a steer has no position in the queue.", field="after")
            if wanted.version == entry.version and not (change.place and queue.moves(entry, change.place)):
                return entry
            _check_version(change.version, entry)
            if wanted.kind != entry.kind:
                if wanted.kind == "steer":
                    await queue.steer(wanted, change.check_target)
                else:
                    if change.request is None:
                        raise _changed(entry)
                    await take_queued_place(connection, owner, change.most_queued)
                    await queue.enqueue(owner, wanted, change.request, change.place or Behind(None))
            else:
                if wanted.version != entry.version:
                    await queue.edit(wanted)
                if change.place is not None:
                    await (await _locked(connection, chat, id)).move(entry, change.place)
            rows = await connection.rows(GET_PAIRS, chat=chat)
            return (await _read(connection, chat, rows))[id]

    async def withdraw(self, owner: str, chat: UUID, id: UUID, version: str | None) -> QueueEntry | None:
        """Removes the entry from the queue for ever. Returns the entry, or None if it was withdrawn before. Raises
        Delivered, Conflict, NotFound.
        """
        await self._check_replicas()
        async with self._exchanges.locked(owner, chat) as (connection, _):
            queue = await _locked(connection, chat, id)
            entry = queue.entries.get(id)
            if entry is None:
                missing = await _missing(connection, chat, id)
                if missing.code == "withdrawn":
                    return None
                raise missing
            if version is not None:
                _check_version(version, entry)
            await queue.withdraw(entry)
            return entry

    async def _check_replicas(self) -> None:
        """Raises Conflict while a replica of the previous version is alive."""
        if await self._everything.row(GET_OLDER_REPLICA) is not None:
            raise Conflict(
                "A replica of an older version, without support for such changes, is still running; try again later."
            )


def _check_version(version: str, entry: QueueEntry) -> None:
    if version != entry.version:
        raise _changed(entry)


def _changed(entry: QueueEntry) -> Conflict:
    detail = f"Message {entry.id} has changed since you read it: its version is {entry.version}."
    return Conflict(detail, field="version", code="version_outdated")


def _no_place() -> RequestRefused:
    return RequestRefused("`after` must be another queued message of the same branch, or null.", field="after")


async def _locked(connection: Transaction, chat: UUID, id: UUID) -> _Queue:
    """Returns the queue. Its messages are not delivered until the transaction ends. `id` may be the id of a steer."""
    rows = await connection.rows(LOCK_PAIRS, chat=chat)
    await connection.row(LOCK_TURN_OF_STEER, chat=chat, steer=id)  # the turn receives the steer under this lock
    pairs = {row["question"]: Pair(row["question"], row["answer"], row["after"]) for row in rows}
    steered = frozenset(row["question"] for row in rows if row["is_steered"])
    return _Queue(connection, chat, await _read(connection, chat, rows), pairs, steered)


async def _read(connection: Transaction, chat: UUID, rows: Sequence[Row]) -> dict[UUID, QueueEntry]:
    entries = {}
    for row in await connection.rows(GET_STEERS_OF_CHAT, chat=chat):
        steer = steer_from(row)
        entries[steer.id] = QueueEntry(steer.id, "steer", row["turn_id"], steer.blocks, row["created_at"])
    rows = [row for row in rows if not row["cancel_requested"]]
    found = await connection.rows(GET_BLOCKS, turns=[row["question"] for row in rows]) if rows else ()
    blocks = by_turn(found, block_from)
    for row in rows:
        id = row["question"]
        entries[id] = QueueEntry(id, "queued", row["answer"], tuple(blocks[id]), row["created_at"], row["after"])
    return entries


async def _missing(connection: Transaction, chat: UUID, id: UUID) -> RequestRefused:
    """Returns the refusal for an entry that is not in the queue."""
    delivery = await connection.row(GET_DELIVERY, chat=chat, entry=id)
    if delivery is not None and delivery["is_cancelled"]:
        return Conflict(f"Turn {delivery['turn']}, the answer to message {id}, is being cancelled.")
    if delivery is not None:
        return Delivered(id, Recipient(delivery["turn"], delivery["round"]))
    if await connection.row(WAS_WITHDRAWN, chat=chat, entry=id) is not None:
        return Conflict(f"Message {id} was withdrawn.", code="withdrawn")
    return NotFound(f"There is no entry {id} in the queue of chat {chat}.")

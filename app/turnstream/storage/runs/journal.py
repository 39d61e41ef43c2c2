"""The journal: the text of the open blocks of running turns, in two parts.

Each replica appends its new text to its own log: a row for each tick, with the pieces of all its turns. Postgres does
not write this table to its WAL, and empties the table after a crash. A checkpoint stores the same text durably, in rows
of each turn, about once a second. It also deletes the log's ticks up to the previous checkpoint. The text of a turn is
the text in its own rows, continued by the log.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import asdict, replace

from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict, StorageUnavailable
from turnstream.domain.turns import Turn
from turnstream.storage.contents import OPEN_TEXT, TEXT_MARK, Codec, text_size
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.retention import NO_ID, ROWS, walk, walk_of
from turnstream.storage.rows import to_json

_PIECE = """AS piece (
        turn uuid, attempt int, index int, start int, round int, type text, tool_use_id text, name text, text text
    )"""
# If two pieces have the same offset, the longer piece has the same text with more characters.
_INSERT_TEXT = "INSERT INTO open_text (turn_id, attempt, index, start, round, type, tool_use_id, name, text)"
_LONGER = f"""ON CONFLICT (turn_id, attempt, index, start) DO UPDATE SET text = EXCLUDED.text
        WHERE {text_size("EXCLUDED.text")} > {text_size("open_text.text")}"""

# No fence: a reader uses the pieces of a turn only from the log of the replica that the turn's row names, and only with
# the row's attempt. A tick continues the log only if the previous tick still exists. The statement changes no logged
# table, so its commit does not wait for the disk. A foreign key to `replicas` would lock a logged row, and wait.
APPEND_TICK = Statement(
    """
    INSERT INTO journal_ticks (replica, tick, checkpoint, pieces)
    SELECT :replica, :tick, :checkpoint, :pieces
    WHERE CAST(:last AS bigint) IS NULL OR EXISTS (
        SELECT FROM journal_ticks WHERE replica = :replica AND tick = CAST(:last AS bigint)
    )
    RETURNING tick
    """
)
# The fence takes no lock, because a stale owner's checkpoint begins long after the claim of the new owner.
_STORE = f"""
    {_INSERT_TEXT}
    SELECT piece.* FROM json_to_recordset(CAST(:pieces AS json)) {_PIECE}
    WHERE piece.attempt = (SELECT CASE status WHEN 'running' THEN attempt END FROM turns WHERE id = piece.turn)
    {_LONGER}
    RETURNING turn_id
"""
STORE_TEXT = Statement(_STORE)
CHECKPOINT = Statement(
    "WITH pruned AS (DELETE FROM journal_ticks WHERE replica = :replica AND tick <= CAST(:until AS bigint))" + _STORE
)
# Deletes the logs of replicas that are `gone` or have no row, in the statement that has `taken` their turns, and stores
# the text of these turns. If the answer to a tick was lost, a later tick may repeat its pieces with more text.
END_LOGS = f"""
    ended AS (
        DELETE FROM journal_ticks
        WHERE replica = ANY(CAST(:gone AS uuid[])) OR NOT EXISTS (SELECT FROM replicas WHERE id = replica)
        RETURNING tick, pieces
    ), latest AS (
        SELECT DISTINCT ON (turn, piece.attempt, index, start) piece.*
        FROM ended CROSS JOIN json_to_recordset(CAST(pieces AS json)) {_PIECE}
        JOIN taken ON taken.id = turn AND taken.attempt = piece.attempt
        ORDER BY turn, piece.attempt, index, start, tick DESC
    ), folded AS (
        {_INSERT_TEXT} SELECT * FROM latest {_LONGER}
    )
"""
GET_OPEN_TEXT = Statement(
    "SELECT * FROM open_text WHERE turn_id = :turn ORDER BY attempt, index, start", opens=[OPEN_TEXT]
)
# Begins with the piece that starts within the known text and reaches farthest. After a crash of Postgres the executor
# writes all text again, from the first character.
GET_NEW_TEXT = Statement(
    f"""
    SELECT open_text.* FROM unnest(
        CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:indexes AS int[]), CAST(:lengths AS int[])
    ) AS known (turn, attempt, index, length)
    CROSS JOIN LATERAL (
        SELECT coalesce((
            SELECT start FROM open_text
            WHERE turn_id = known.turn AND attempt = known.attempt AND index = known.index AND start <= known.length
            ORDER BY start + {text_size("text")} DESC, start LIMIT 1
        ), 0) AS start
    ) AS last
    JOIN open_text ON turn_id = known.turn
        AND (open_text.attempt, open_text.index, open_text.start) >= (known.attempt, known.index, last.start)
    ORDER BY turn_id, open_text.attempt, open_text.index, open_text.start
    """,
    opens=[OPEN_TEXT],
)
GET_NEW_TICKS = Statement(
    """
    SELECT log.* FROM unnest(CAST(:replicas AS uuid[]), CAST(:lasts AS bigint[])) AS known (replica, last)
    JOIN journal_ticks AS log ON log.replica = known.replica AND log.tick > known.last
    ORDER BY log.replica, log.tick
    """
)
# Deletes remainders: pieces that arrived after the end of their block, and the text of deleted turns.
SWEEP = walk_of(
    "open_text",
    ["turn_id", "attempt", "index", "start"],
    "NOT EXISTS (SELECT FROM turns WHERE turns.id = turn_id AND status IN ('running', 'queued'))",
)


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A piece of the text of an open block, from offset `start`."""

    turn: UUID
    attempt: int
    index: int
    start: int
    round: int
    type: str
    text: str
    tool_use_id: str | None = None
    name: str | None = None


_ENTRY = OPEN_TEXT.named(turn_id="turn")
_decoder = msgspec.json.Decoder(list[JournalEntry])


async def sealed(codec: Codec | None, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """Returns the entries in their stored form, for the log and `open_text`."""
    if codec is None or not entries:
        return entries
    columns = {name: [getattr(entry, name) for entry in entries] for name in ("turn", "attempt", "index", "start")}
    try:
        stored = await codec.seal(_ENTRY, {**columns, "text": [entry.text for entry in entries]})
    except Conflict as error:  # no text is sealed while a replica lacks the key
        raise StorageUnavailable(str(error)) from error
    return [replace(entry, text=text) for entry, text in zip(entries, stored["text"], strict=True)]


async def opened(codec: Codec | None, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """Returns the entries with opened texts."""
    if codec is None or not any(entry.text.startswith(TEXT_MARK) for entry in entries):
        return entries
    rows = await codec.open(_ENTRY, {}, [asdict(entry) for entry in entries])
    return [replace(entry, text=row["text"]) for entry, row in zip(entries, rows, strict=True)]


class Journal:
    """The journal of one replica, with one writer. If a method raises StorageUnavailable, it is unknown whether the
    write took effect: readers may have the text, so the caller must repeat the same text from the same offsets.
    """

    def __init__(self, database: Database, replica: UUID) -> None:
        self._database = database
        self._replica = replica
        self._tick = 0
        self._last: int | None = None  # the last tick, which the next tick continues
        self._newest_text = 0  # the last tick with text
        self._checkpoint = 0  # the text of all ticks up to this tick is durable
        self._pruned = 0  # the ticks up to this tick are deleted

    @property
    def has_text(self) -> bool:
        """Whether the log has text. After two more checkpoints it has none."""
        return self._newest_text > self._pruned

    async def append(self, entries: Sequence[JournalEntry]) -> bool:
        """Writes a tick. Returns False without a write if the log is gone: Postgres has crashed, or other replicas
        declared this replica dead. The next tick succeeds, and must have the whole text of all open blocks.
        """
        self._tick += 1  # also after an error: the tick may exist, and readers may have it
        row = await self._database.row(
            APPEND_TICK,
            replica=self._replica,
            tick=self._tick,
            last=self._last,
            checkpoint=self._checkpoint,
            pieces=to_json(await sealed(self._database.codec, entries)),
        )
        if row is None:
            self._last = None
            return False
        self._last = self._tick
        if entries:
            self._newest_text = self._tick
        return True

    async def checkpoint(self, entries: Sequence[JournalEntry]) -> None:
        """Stores the text of all ticks since the previous checkpoint durably. Deletes the ticks up to the previous
        checkpoint: a mirror that has not read these ticks reads the stored text instead.
        """
        until, stored = self._checkpoint, self._last or self._checkpoint  # other ticks may follow meanwhile
        pieces = to_json(await sealed(self._database.codec, entries))
        await self._database.row(CHECKPOINT, replica=self._replica, until=until, pieces=pieces)
        self._pruned, self._checkpoint = until, stored


class OpenTexts:
    """The stored text of open blocks, written by checkpoints, releases and takeovers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def store(self, entries: Sequence[JournalEntry]) -> None:
        """Stores pieces, except for turns whose claim is lost."""
        await self._database.row(STORE_TEXT, pieces=to_json(await sealed(self._database.codec, entries)))

    async def open_block(self, turn: Turn) -> Block | None:
        """Returns the stored part of the open block of the turn's unsealed round; None without stored text."""
        rows = await self._database.rows(GET_OPEN_TEXT, turn=turn.id)
        block, _ = open_block_from(turn, map(entry_from, rows))
        return block

    def sweep(self) -> AsyncGenerator[int, None]:
        begin = {"turn_id": NO_ID, "attempt": 0, "index": 0, "start": 0}
        return walk(self._database, SWEEP, begin, ROWS)


def entry_from(row: Row) -> JournalEntry:
    return JournalEntry(
        row["turn_id"],
        row["attempt"],
        row["index"],
        row["start"],
        row["round"],
        row["type"],
        row["text"],
        row["tool_use_id"],
        row["name"],
    )


def entries_of(tick: Row) -> Sequence[JournalEntry]:
    """Returns the pieces in a row of the log."""
    return _decoder.decode(tick["pieces"])


def open_block_from(turn: Turn, entries: Iterable[JournalEntry], known: int = 0) -> tuple[Block | None, int]:
    """Returns the open block of `turn` from pieces of the journal in any order, and the offset at which its text
    begins. The offset may be above 0 if the reader knows the first `known` characters. Pieces of an earlier, voided
    call are skipped.
    """
    unsealed = [round for round in turn.rounds if not round.sealed and not round.voided]
    if not unsealed:
        return None, 0
    mine = [entry for entry in entries if entry.index == len(turn.blocks) and entry.attempt >= unsealed[-1].attempt]
    attempt = max((entry.attempt for entry in mine), default=0)
    mine = sorted((entry for entry in mine if entry.attempt == attempt), key=lambda entry: entry.start)
    if not mine or mine[0].start > known:
        return None, 0
    head, text = mine[0], ""
    for entry in mine:
        if entry.start > head.start + len(text):
            break  # a gap: Postgres has restarted and lost pieces; the executor writes all pieces again
        text += entry.text[head.start + len(text) - entry.start :]
    block = Block(
        index=head.index,
        round=head.round,
        attempt=head.attempt,
        type=head.type,
        text=text,
        tool_use_id=head.tool_use_id,
        name=head.name,
        interrupted=True,
    )
    return block, head.start

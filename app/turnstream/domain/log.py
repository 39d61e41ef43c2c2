"""The log of a turn: its marks, and the event that follows a cursor.

A log consists of marks, and of the text of the open block. The live view appends to the log of a running turn;
`marks_of` builds the log of an ended turn from rows. Both logs are equal, so one reader serves both. Within one attempt
a log only grows. A deletion starts a new attempt, so that cursors into the deleted part become void.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, overload

from turnstream.domain.asks import QUESTIONS, Ask
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import Cursor
from turnstream.domain.deferred import input_of
from turnstream.domain.degraded import degraded
from turnstream.domain.events import (
    ActionRequired,
    Answered,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Mark,
    RequiredAction,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import AFTER_SEAL, TOOL_RESULT
from turnstream.domain.output import phase_of
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn

# The most characters in one delta, which limits the memory of a stalled reader.
LONGEST_DELTA = 131_072

M = TypeVar("M", RoundStart, ActionRequired)


class Log(Protocol):
    """The log for readers. `open_text` returns the open block's text from an offset, up to LONGEST_DELTA characters."""

    @property
    def attempt(self) -> int: ...
    def has_had(self, attempt: int) -> bool: ...
    @property
    def marks(self) -> "Marks": ...
    @property
    def open_length(self) -> int: ...
    def open_text(self, offset: int) -> str: ...


def end_of(turn: Turn) -> TurnEnd:
    ended = turn.attempt, turn.status, turn.stop_reason, turn.usage, turn.error
    return TurnEnd(*ended, degraded(turn), phase_of(turn))


def start_of_round(round: Round, blocks: Sequence[Block]) -> RoundStart:
    """Returns the mark of a round's start. `blocks` must contain the tool results of the previous round."""
    answered = tuple(
        Answered(block.tool_use_id or "", block.name or "", block.is_error)
        for block in blocks
        if block.type == TOOL_RESULT and block.round == round.number - 1
    )
    return RoundStart(round.attempt, round.number, round.messages, answered)


def start_of_block(block: Block) -> BlockStart:
    return BlockStart(block.attempt, block.index, block.round, block.type, block.tool_use_id, block.name)


def stop_of_block(block: Block, closed_by: int) -> BlockStop:
    """Returns the mark of a block's end. The mark of an interrupted block belongs to the attempt that settled its
    round. So a client that has more text, after a failover that lost commits, receives the block again.
    """
    return BlockStop(closed_by if block.interrupted else block.attempt, block)


class Marks(Sequence[Mark]):
    """The marks of a log. A reply may have thousands of blocks, so the marks of closed blocks are made on access."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Mark | Block] = []

    @overload
    def __getitem__(self, place: int) -> Mark: ...
    @overload
    def __getitem__(self, place: slice) -> list[Mark]: ...
    def __getitem__(self, place: int | slice) -> Mark | list[Mark]:
        entries = self._entries
        if isinstance(place, slice):
            return [self[each] for each in range(len(entries))[place]]
        entry = entries[place]
        if not isinstance(entry, Block):
            return entry
        after = place + 1
        is_start = after not in (0, len(entries)) and entries[after] is entry
        return start_of_block(entry) if is_start else stop_of_block(entry, entry.attempt)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self._entries == other._entries if isinstance(other, Marks) else list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> "Marks":
        copy = Marks()
        copy._entries = self._entries.copy()
        return copy

    def append(self, mark: Mark) -> None:
        self._entries.append(mark)

    def add(self, blocks: Iterable[Block], closed_by: int | None = None) -> None:
        """Appends both marks of each closed block. The start of a block that was open is already in the log."""
        entries = self._entries
        for block in blocks:
            if entries and isinstance(last := entries[-1], BlockStart) and last.index == block.index:
                entries.pop()
            if block.interrupted:
                entries += start_of_block(block), stop_of_block(block, closed_by or block.attempt)
            else:
                entries += block, block

    def is_open(self, block: Block) -> bool:
        last = self._entries[-1] if self._entries else None
        return isinstance(last, BlockStart) and last.index == block.index

    def places_of(self, kind: type[M]) -> Iterator[tuple[int, M]]:
        """Yields the marks of the class `kind`, each with its index. `kind` must not be a class of block marks."""
        return ((place, entry) for place, entry in enumerate(self._entries) if isinstance(entry, kind))

    def remove_from(self, place: int) -> None:
        del self._entries[place:]

    def length_until(self, attempt: int, most: int) -> int:
        """Returns the number of marks before the first mark of an attempt after `attempt`, at most `most`."""
        entries = self._entries[:most]
        return next((place for place, entry in enumerate(entries) if entry.attempt > attempt), len(entries))

    def blocks_before(self, place: int) -> int:
        """Returns the number of blocks before the index `place`, which must not be between the two marks of a block."""
        entries = self._entries[:place]
        return (
            sum(isinstance(entry, BlockStart) for entry in entries)
            + sum(isinstance(entry, Block) for entry in entries) // 2
        )


def required_actions_of(asks: Sequence[Ask], blocks: Sequence[Block]) -> tuple[RequiredAction, ...]:
    """Returns the required actions for `asks`, in the order of their calls."""
    by_call = {ask.key: ask for ask in asks}
    calls = [(ask, block) for block in blocks if block.is_call and (ask := by_call.get(block.key)) is not None]
    return tuple(
        RequiredAction(
            *(ask.tool_use_id, ask.name, ask.kind, input_of(call, ask.name), ask.digest, ask.expires_at),
            can_remember=ask.tool_digest is not None,
        )
        for ask, call in calls
    )


def open_actions_of(turn: Turn) -> tuple[RequiredAction, ...]:
    """Returns the actions that wait for a person. A question is open until its call has a result or, if the question is
    an elicitation, until the run that asked it has ended.
    """
    asks = [ask for ask in turn.asks if ask.answer is None]
    if not asks:
        return ()  # avoids the loop over blocks, because a turn may have thousands of blocks
    results = {block.key for block in turn.blocks if block.type == TOOL_RESULT}
    questions = tuple(
        RequiredAction(ask.call_id, ask.name, ask.kind, ask.question, ask.digest, ask.expires_at)
        for ask in asks
        if ask.question is not None
        if turn.waits_for(ask)
        if (ask.round, ask.call_id) not in results
    )
    return required_actions_of(asks, turn.blocks) + questions


def elicited(turn: Turn) -> ActionRequired | None:
    """Returns all open actions if one of them is a question, because questions have no mark. Otherwise None."""
    actions = open_actions_of(turn)
    if not any(action.kind in QUESTIONS for action in actions):
        return None
    return ActionRequired(turn.attempt, turn.rounds[-1].number, actions)


def action_required(asks: Sequence[Ask], blocks: Sequence[Block]) -> ActionRequired:
    """Returns the mark for `asks` of one round. One attempt made all these asks, before any result of the round."""
    return ActionRequired(asks[0].attempt, asks[0].round, required_actions_of(asks, blocks))


def marks_of(turn: Turn) -> Marks:
    """Builds the log of a turn from its rows."""
    model = turn.request.model if turn.request else ""
    by_round: defaultdict[int, list[Block]] = defaultdict(list)
    for block in turn.blocks:
        by_round[block.round].append(block)
    marks = Marks()
    marks.append(TurnStart(0, turn.id, turn.chat_id, model, turn.attempt, turn.status))
    marks.add(block for block in by_round[0] if block.type in AFTER_SEAL)
    for round in turn.rounds:
        if not round.voided:
            asks = [ask for ask in turn.asks if ask.round == round.number and ask.is_marked]
            _add_round(marks, round, by_round, asks)
    if turn.ended:
        marks.append(end_of(turn))
    return marks


def _add_round(marks: Marks, round: Round, by_round: Mapping[int, Sequence[Block]], asks: Sequence[Ask]) -> None:
    blocks = by_round.get(round.number, ())
    marks.append(start_of_round(round, by_round.get(round.number - 1, ())))
    marks.add((block for block in blocks if block.type not in AFTER_SEAL), round.sealed_by)
    if round.sealed_by is not None:
        marks.append(RoundStop(round.sealed_by, round.number, round.stop_reason, round.usage))
    if asks:
        marks.append(action_required(asks, blocks))
    marks.add(block for block in blocks if block.type in AFTER_SEAL)


def resume(log: Log, cursor: Cursor) -> tuple[Cursor, Reset | None]:
    """Returns the cursor from which a client with `cursor` continues, and the reset to send first, if any."""
    if not log.has_had(cursor.attempt):
        # The database does not know this attempt, for example after a failover, so only the first mark is certain.
        return Cursor(log.attempt, min(1, cursor.place)), Reset(log.attempt, 0)
    # Marks of later attempts may have replaced marks of the client, which keeps the first `kept` marks.
    kept = log.marks.length_until(cursor.attempt, cursor.place)
    if kept == cursor.place and cursor.offset <= _text_length(log, cursor.place):
        return Cursor(log.attempt, cursor.place, cursor.offset), None
    if kept and isinstance(log.marks[kept - 1], BlockStart):
        kept -= 1
    return Cursor(log.attempt, kept, 0), Reset(log.attempt, log.marks.blocks_before(kept))


def _text_length(log: Log, place: int) -> int:
    if place < len(log.marks):
        mark = log.marks[place]
        return len(mark.block.text) if isinstance(mark, BlockStop) else 0
    return log.open_length


def next_event(log: Log, cursor: Cursor) -> tuple[Event, Cursor] | None:
    """Returns the event after `cursor` and the cursor after that event; None if the client has the whole log.

    `cursor` must come from `resume` or from this function, for this log's attempt. If a mirror has lost the journal,
    its log may end before the cursor.
    """
    attempt, place, offset = cursor
    marks = log.marks
    if place >= (count := len(marks)):
        if place > count or offset >= log.open_length:
            return None
        return _delta(log, cursor, log.open_text(offset))
    mark = marks[place]
    if isinstance(mark, BlockStop) and offset < len(mark.block.text):
        return _delta(log, cursor, mark.block.text[offset : offset + LONGEST_DELTA])
    return mark, Cursor(attempt, place + 1, 0)


def _delta(log: Log, cursor: Cursor, text: str) -> tuple[Event, Cursor]:
    attempt, place, offset = cursor
    start = log.marks[place - 1]
    assert isinstance(start, BlockStart)
    return BlockDelta(start.index, offset, text), Cursor(attempt, place, offset + len(text))


def end_cursor(log: Log) -> Cursor:
    """Returns the cursor of a client that has the whole log."""
    return Cursor(log.attempt, len(log.marks), log.open_length)

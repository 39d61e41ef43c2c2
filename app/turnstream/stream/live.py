"""The live view: one turn in memory, with one writer and any number of readers."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from turnstream.domain.asks import Ask
from turnstream.domain.blocks import Block
from turnstream.domain.charges import Charge
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockStart,
    Mark,
    Notice,
    RoundStart,
    RoundStop,
    preliminary_notice,
    progress_notice,
)
from turnstream.domain.log import (
    LONGEST_DELTA,
    action_required,
    elicited,
    end_cursor,
    end_of,
    marks_of,
    open_actions_of,
    start_of_block,
    start_of_round,
)
from turnstream.domain.rounds import Round
from turnstream.domain.turns import DELETED, Turn
from turnstream.stream.wakeup import Wakeup

_NOTICES_KEPT = 32


class PlacedNotice(NamedTuple):
    """The `number`-th notice of a view. `position` is the cursor of a client that has all events before the notice."""

    number: int
    position: Cursor
    notice: Notice | ActionRequired


class Frame(NamedTuple):
    """The encoded events between two cursors, shared by readers at the same cursor."""

    start: Cursor
    stop: Cursor
    data: bytes


class LiveView:
    """A growing log (turnstream.domain.log). The writer appends and notifies; a reader reads the new events, then waits
    for a notification.

    `turn` always equals the rows, because the view is changed only after a row is written. Only two things are ahead of
    the rows: the text of the open block, and briefly a round that has `begun`. A `provisional` view of a running turn
    lacks the journal, so a client may have more text than the view, and is not reset because of that.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.marks = marks_of(turn)
        self.wakeup = Wakeup()
        self.begun: Sequence[Round] = ()  # the open round, while it has no row
        # Computes the charge for a model call that has neither a reply nor a reservation.
        self.unreserved: Callable[[], Charge] | None = None
        self.provisional = False
        self.last_frame: Frame | None = None
        self.unjoined = 0  # counts the readers that want unjoined deltas (`frames=never`)
        self.notices: list[PlacedNotice] = []
        self.notice_number = 0
        self._pieces: list[str] = []
        self._ends: list[int] = []

    @property
    def attempt(self) -> int:
        return self.turn.attempt

    def has_had(self, attempt: int) -> bool:
        return self.turn.has_had(attempt)

    @property
    def ended(self) -> bool:
        return self.turn.ended

    @property
    def open_length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def open_text(self, offset: int) -> str:
        """Returns the open block's text from `offset`, at most LONGEST_DELTA characters. If a reader lacks only the
        last piece, no search and no join is needed.
        """
        ends = self._ends
        if len(ends) > 1 and ends[-2] == offset:  # the token path
            return self._pieces[-1][:LONGEST_DELTA]
        first = bisect_right(ends, offset)
        last = bisect_left(ends, offset + LONGEST_DELTA, first)
        start = ends[first - 1] if first else 0
        pieces = self._pieces[first : last + 1]
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        return text[offset - start : offset - start + LONGEST_DELTA]

    def append(self, text: str) -> None:
        """Appends text to the open block. Every token takes this path."""
        ends = self._ends
        self._pieces.append(text)
        ends.append((ends[-1] if ends else 0) + len(text))
        self.wakeup.notify()

    def open_block(self, start: BlockStart) -> None:
        self._mark(start)

    def block_being_written(self) -> Block | None:
        """Returns the interrupted block that the open block becomes if no more text arrives."""
        start = self.marks[-1]
        if not isinstance(start, BlockStart):
            return None
        return Block(
            index=start.index,
            round=start.round,
            attempt=start.attempt,
            type=start.type,
            text="".join(self._pieces),
            tool_use_id=start.tool_use_id,
            name=start.name,
            interrupted=True,
        )

    def is_behind(self, turn: Turn) -> bool:
        """Returns whether the rows of `turn` have more than the view, because a mirror has not read them yet, or
        contradict the view's past, because the database lost commits that the view has.
        """
        if turn.attempt != self.attempt:
            return not self.has_had(turn.attempt)
        return not self.ended and (turn.ended or _lacks_rows(self.turn, turn))

    def adopt(self, turn: Turn, open_block: Block | None, start: int = 0) -> None:
        """Copies rows and journal, as read from Postgres. Within one attempt the view only grows; a state older than
        the view is ignored, unless the turn has ended. If a failover lost commits, the state counts as older, because
        the running turn writes those rows again. The text of `open_block` begins at its character `start`.
        """
        is_older = _lacks_rows(turn, self.turn) if turn.attempt == self.attempt else self.has_had(turn.attempt)
        if not turn.ended and is_older:
            return
        is_open = open_block is not None and self.marks.is_open(open_block)
        if start > (self.open_length if is_open else 0):
            return  # the query requested text after `start`, but the view now has less; the next query requests all
        if self.provisional:
            self.provisional = False
            self.wakeup.notify()  # a reader whose cursor is ahead of the rows waits for this
        news = [preliminary_notice(output) for output in turn.preliminary if output not in self.turn.preliminary]
        news += [progress_notice(job) for job in turn.open_jobs if job not in self.turn.jobs]
        same = turn.attempt == self.attempt and _size(turn) == _size(self.turn)
        if same and (open_block is None or is_open):
            if open_block and start + len(open_block.text) > self.open_length:
                self.append(open_block.text[self.open_length - start :])
            elicited_before = elicited(self.turn)
            self.turn = replace(self.turn, preliminary=turn.preliminary, jobs=turn.jobs, asks=turn.asks)
            if elicited(self.turn) != elicited_before:  # the ask of a job was answered, or the job runs again
                self.notify_actions()
            self._notify_all(news)
            return
        before = "".join(self._pieces)[:start]
        elicited_before, self.turn = elicited(self.turn), turn
        self.marks = marks_of(turn)
        self._forget_open_text()
        if elicited(turn) != elicited_before:
            self.notify_actions()
        if open_block is not None:
            self.marks.append(start_of_block(open_block))
            self.append(before + open_block.text)
        self.wakeup.notify()
        self._notify_all(news)

    def _notify_all(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self.notify(notice)

    def vanish(self) -> None:
        """Ends the view of an open turn that was deleted. No row shows the deletion, so readers get a last event."""
        if self.ended:
            return
        if block := self.block_being_written():
            self.close_blocks([block])
        self.provisional = False
        self.end(replace(self.turn, status="cancelled", stop_reason=DELETED))

    def close_blocks(self, blocks: Sequence[Block]) -> None:
        """Closes the open block, and adds blocks that were never open. `blocks` are as in their rows."""
        self.marks.add(blocks, self.attempt)
        self._forget_open_text()
        self.turn = replace(self.turn, blocks=(*self.turn.blocks, *blocks))
        self.wakeup.notify()

    def begin_round(self, round: Round) -> None:
        self.turn = replace(self.turn, rounds=(*self.turn.rounds, round))
        self._mark(start_of_round(round, self.turn.blocks))

    def seal_round(self, round: Round, turn: Turn) -> None:
        """Replaces the unsealed round by `round`. `turn` has the other new values of the turn."""
        assert round.sealed_by is not None
        self.turn = replace(turn, rounds=(*self.turn.rounds[:-1], round), blocks=self.turn.blocks)
        self._mark(RoundStop(round.sealed_by, round.number, round.stop_reason, round.usage))

    def ask(self, asks: Sequence[Ask]) -> None:
        """Adds `asks`, for calls of the last round that wait for a person."""
        self.turn = replace(self.turn, asks=(*self.turn.asks, *asks))
        if shown := [ask for ask in asks if ask.is_marked]:
            self._mark(action_required(shown, self.turn.blocks))

    def void_round(self, round: Round, turn: Turn) -> None:
        """Voids the last round. `turn` has the next attempt, by which readers detect the reset."""
        blocks = tuple(block for block in self.turn.blocks if block.round != round.number)
        running = tuple(output for output in self.turn.preliminary if output.round != round.number)
        rounds = (*self.turn.rounds[:-1], round)
        self.turn = replace(turn, rounds=rounds, blocks=blocks, preliminary=running)
        self._forget_open_text()
        starts = (place for place, mark in self.marks.places_of(RoundStart) if mark.round == round.number)
        self.marks.remove_from(next(starts, len(self.marks)))
        self.wakeup.notify()

    def end(self, turn: Turn) -> None:
        self.turn = turn
        self._mark(end_of(turn))

    def notify_actions(self) -> None:
        """Sends readers all calls that wait for a person, after an elicitation was added or answered."""
        self.notify(ActionRequired(self.attempt, self.turn.rounds[-1].number, open_actions_of(self.turn)))

    def notify(self, notice: Notice | ActionRequired) -> None:
        if self.ended:
            return  # no event follows the end of a turn
        self.notice_number += 1
        self.notices.append(PlacedNotice(self.notice_number, end_cursor(self), notice))
        del self.notices[:-_NOTICES_KEPT]
        self.wakeup.notify()

    def notices_after(self, number: int) -> Sequence[PlacedNotice]:
        """Returns the kept notices whose number is greater than `number`."""
        if number == self.notice_number:
            return ()
        return [placed for placed in self.notices if placed.number > number]

    def _mark(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.wakeup.notify()

    def _forget_open_text(self) -> None:
        self._pieces, self._ends = [], []


def _lacks_rows(turn: Turn, known: Turn) -> bool:
    return any(count < before for count, before in zip(_counts(turn), _counts(known), strict=True))


def _size(turn: Turn) -> tuple[object, ...]:
    """Returns a value that differs between two states of one attempt if and only if readers see a difference."""
    return turn.status, *_counts(turn)


def _counts(turn: Turn) -> tuple[int, int, int]:
    return len(turn.blocks), sum(1 + round.sealed + round.voided for round in turn.rounds), len(turn.asks)

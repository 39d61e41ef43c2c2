"""One streamed reply of the model: recorded for rows and readers while it arrives."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import Any, assert_never

import structlog

from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError
from turnstream.domain.events import BlockStart
from turnstream.domain.kinds import TEXT
from turnstream.domain.rounds import Round
from turnstream.domain.steps import open_round_number
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.recorder import Recorder
from turnstream.engine.retries import StallTimeout
from turnstream.engine.text_checks import TextGate
from turnstream.engine.unwritten import Unwritten
from turnstream.kit.clock import CLOCK
from turnstream.llm.accumulator import Accumulator, Change
from turnstream.llm.conversation.seam import Seam
from turnstream.llm.provider import ModelRequest, Part, Unknown
from turnstream.telemetry import FIRST_DELTA_SECONDS

log = structlog.get_logger(__name__)

# Most blocks that one statement writes.
_MOST_BLOCKS = 500


class Reply:
    """The reply to `request`. It continues the cut text in `continued` (from `text_to_continue`), if there is one.
    `begun` is called at the first part of the reply, `closed` with each block whose row is written. A reply of more
    than `max_chars` is cut off. With a `gate`, only text that has passed the gate is recorded. `taken_back` is awaited
    before recorded text is voided.
    """

    def __init__(
        self,
        recorder: Recorder,
        clock: FrameClock,
        request: ModelRequest,
        max_chars: int,
        begun: Callable[[], None],
        closed: Callable[[Block], None] | None = None,
        continued: tuple[str, str] = ("", ""),
        gate: TextGate | None = None,
        taken_back: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        turn = recorder.turn
        self._recorder = recorder
        self._clock = clock
        self._request = request
        self._begun = begun
        self._chars_left = self._max_chars = max_chars
        earlier, cut = continued
        self._seam = Seam(cut, earlier) if cut.strip() else None
        self._gate = gate
        self._taken_back = taken_back
        self._first = len(turn.blocks)
        self._message = Accumulator(open_round_number(turn), turn.attempt, self._first)

        # Has no reference to this reply: a cycle would keep the whole run in memory until a garbage collection.
        async def close(blocks: Sequence[Block]) -> None:
            await recorder.close_blocks(blocks)
            if closed is not None:
                for block in blocks:
                    closed(block)

        self._close = close
        self._unwritten = Unwritten(lambda block: close([block]))
        self._first_delta_at: datetime | None = None
        self._opened = perf_counter()
        self.seconds_to_first_delta: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._message.started

    @property
    def usage(self) -> Mapping[str, Any]:
        return self._message.usage

    @property
    def request_id(self) -> str | None:
        return self._message.request_id

    @property
    def is_whole(self) -> bool:
        return self._message.ended or self._message.stop_reason is not None

    @property
    def stop_reason(self) -> str:
        return self._message.stop_reason or "end_turn"

    @property
    def blocks(self) -> Iterator[Block]:
        """The closed blocks of the reply: first the blocks with rows, then the blocks without."""
        yield from self._recorder.turn.blocks[self._first :]
        yield from self._unwritten.blocks

    async def consume(self, stream: AsyncIterator[Sequence[Part]], stall: StallTimeout) -> None:
        """Records the stream to its end. Raises the provider's errors, and PermanentError if the reply is too long."""
        try:
            await self._record(stream, stall)
        finally:
            await self._unwritten.settle()

    async def _record(self, stream: AsyncIterator[Sequence[Part]], stall: StallTimeout) -> None:
        begun, unwritten, gate = False, self._unwritten, self._gate
        async for parts in stream:
            stall.pause()
            passed = parts if self._seam is None else self._past_seam(parts)
            if gate is not None:
                passed = await gate.check(passed)
                if gate.begins_again:
                    await self._begin_again()
                    begun = False
            unwritten.ahead = changes = self._message.feed(passed)
            if unwritten.waits and changes:
                await unwritten.write()
            if not begun and (changes or self._message.started):
                round = self._begin_round()
                begun = True
                if round.retained is not None:  # after a kill, only the row has the reference to the answer
                    await self._close([])
            if len(changes) == 1 and changes[0].__class__ is str:  # the token path: no await, no new object
                self._delta(changes[0])
            elif changes:
                await self._record_changes(changes)
            if gate is not None and gate.ended is not None:
                raise gate.ended
            if self._clock.tick and not self._recorder.view.unjoined:
                await self._clock.wait_for_tick()
            stall.wait()

    async def _record_changes(self, changes: Sequence[Change]) -> None:
        """Writes the blocks of one read together. During the write, more parts arrive for the next read."""
        last, place = changes[-1], 0
        kept = last if isinstance(last, Block) and last.type == TEXT else None
        until = len(changes) - (kept is not None)
        while place < until:
            change = changes[place]
            if not isinstance(change, Block):
                self._show(change)
                place += 1
                continue
            group = _closed_together(changes[place:until])
            for each in group:
                if isinstance(each, str):  # its block was opened in this read, too, and is shown as a whole
                    self._count(each)
            place += len(group)
            # Set before the write, which runs to its end even if cancelled: only later blocks are left open.
            self._unwritten.ahead = changes[place:]
            await self._close([each for each in group if isinstance(each, Block)])
            for each in group:
                if isinstance(each, Unknown):
                    self._show(each)
        if kept is not None:
            self._unwritten.keep(kept)

    def _past_seam(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Returns the parts that pass the seam. If the reply is interrupted, the text that the seam delays is dropped,
        because it may be part of a repetition.
        """
        assert self._seam is not None
        passed = self._seam.feed(parts)
        if self._seam.decided:
            self._seam = None
        return passed

    async def _begin_again(self) -> None:
        """Voids the recorded part of the reply, because the reply starts again. Its usage is charged only once."""
        if self._taken_back is not None:
            await self._taken_back()
        await self._unwritten.settle()
        self._unwritten.forget()
        turn = self._recorder.turn
        if turn.rounds and not (turn.rounds[-1].sealed or turn.rounds[-1].voided):
            unused = replace(turn.rounds[-1], usage={}, estimated_tokens=None, cost=0.0)
            await self._recorder.void_round(unused, recoveries=turn.recoveries)
        self._message = Accumulator(open_round_number(turn), self._recorder.turn.attempt, self._first)
        self._chars_left = self._max_chars

    def _begin_round(self) -> Round:
        self._begun()
        round = self.new_round()
        structlog.contextvars.bind_contextvars(round=round.number)
        self._recorder.begin_round(round)
        self._recorder.notify_stage("streaming")
        return round

    def new_round(self) -> Round:
        """Returns the round that begins with the reply."""
        message, turn = self._message, self._recorder.turn
        return Round(
            number=open_round_number(turn),
            attempt=turn.attempt,
            model=self._request.model,
            messages=len(self._request.messages),
            usage=message.usage,
            request_id=message.request_id,
            data=message.data,
            started_at=CLOCK.now(),
        )

    def _delta(self, text: str) -> None:
        self._recorder.append(text)
        self._count(text)

    def _count(self, text: str) -> None:
        if self._first_delta_at is None:
            self._first_delta_at = CLOCK.now()
            self.seconds_to_first_delta = perf_counter() - self._opened
            self._observe_first_delta(self._first_delta_at)
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise PermanentError(
                "reply_too_long", f"The answer of the model has more than {self._max_chars} characters."
            )

    def _observe_first_delta(self, now: datetime) -> None:
        turn = self._recorder.turn
        if open_round_number(turn) == 1 and turn.created_at is not None:
            FIRST_DELTA_SECONDS.observe((now - turn.created_at).total_seconds())

    def _show(self, change: BlockStart | str | Unknown) -> None:
        match change:
            case BlockStart():
                self._recorder.open_block(change)
            case Unknown(raw):
                log.warning("provider.unknown", raw=raw[:1000])
                self._recorder.notify("status", provider_event=raw)
            case str():
                self._delta(change)
            case _:
                assert_never(change)

    def complete(self, round: Round, stop_reason: str) -> Round:
        """Returns the round with the figures that the provider has sent so far."""
        message = self._message
        if not message.started:
            return replace(round, stop_reason=stop_reason)
        return replace(
            round,
            stop_reason=stop_reason,
            usage=message.usage,
            data=message.data,
            request_id=message.request_id,
            first_delta_at=self._first_delta_at,
        )

    def cut_off(self) -> list[Block]:
        """Ends the reply at its present length. Returns the blocks that have no rows."""
        interrupted = [change for change in self._message.interrupt() if isinstance(change, Block)]
        return [*self._unwritten.blocks, *interrupted]


def _closed_together(changes: Sequence[Change]) -> Sequence[Change]:
    """Returns the first changes, up to the last block that fits into one statement."""
    ends = [place for place, change in enumerate(changes, 1) if isinstance(change, Block)]
    return changes[: ends[:_MOST_BLOCKS][-1]]

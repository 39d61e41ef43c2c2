"""What the model says in one round: into rows and to readers, as it arrives."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import assert_never

import structlog

from app.domain.blocks import Block
from app.domain.events import BlockStart
from app.domain.rounds import Round
from app.domain.steps import open_round_number
from app.engine.frame_clock import FrameClock
from app.engine.patience import StallTimeout
from app.engine.recorder import Recorder
from app.llm.accumulator import Accumulator, Change
from app.llm.provider import ModelRequest, Part, Unknown
from app.telemetry import FIRST_DELTA_SECONDS

log = structlog.get_logger(__name__)


class Reply:
    """What answers `request`. `closed` is given each block when its row is there."""

    def __init__(
        self,
        recorder: Recorder,
        clock: FrameClock,
        request: ModelRequest,
        closed: Callable[[Block], None] | None = None,
    ) -> None:
        turn = recorder.turn
        self._recorder = recorder
        self._clock = clock
        self._request = request
        self._closed = closed
        self._heard = Accumulator(open_round_number(turn), turn.attempt, len(turn.blocks))
        self._ahead: Sequence[Change] = ()  # what was said and no row holds yet, when a write is cut short
        self._first_delta_at: datetime | None = None

    @property
    def is_whole(self) -> bool:
        return self._heard.ended or self._heard.stop_reason is not None

    @property
    def stop_reason(self) -> str:
        return self._heard.stop_reason or "end_turn"

    async def consume(self, stream: AsyncIterator[Sequence[Part]], patience: StallTimeout) -> None:
        """To its end. Raises what the provider raises."""
        begun = False
        async for parts in stream:
            patience.pause()
            self._ahead = changes = self._heard.feed(parts)
            if not begun and (changes or self._heard.started):
                await self._begin_round()
                begun = True
            for place, change in enumerate(changes, 1):
                if change.__class__ is str:
                    self._delta(change)
                else:
                    self._ahead = changes[place:]
                    await self._apply(change)
            if self._clock.tick:
                await self._clock.wait_for_tick()
            patience.wait()

    async def _begin_round(self) -> None:
        heard, turn = self._heard, self._recorder.turn
        number = open_round_number(turn)
        structlog.contextvars.bind_contextvars(round=number)
        await self._recorder.begin_round(
            Round(
                number=number,
                attempt=turn.attempt,
                model=self._request.model,
                messages=len(self._request.messages),
                usage=heard.usage,
                request_id=heard.request_id,
                data=heard.data,
                started_at=datetime.now(UTC),
            )
        )
        self._recorder.notify_stage("streaming")

    def _delta(self, text: str) -> None:
        if self._first_delta_at is None:
            self._first_delta_at = datetime.now(UTC)
            self._observe_first_delta(self._first_delta_at)
        self._recorder.append(text)

    def _observe_first_delta(self, now: datetime) -> None:
        turn = self._recorder.turn
        if open_round_number(turn) == 1 and turn.created_at is not None:
            FIRST_DELTA_SECONDS.observe((now - turn.created_at).total_seconds())

    async def _apply(self, change: Change) -> None:
        match change:
            case BlockStart():
                self._recorder.open_block(change)
            case Block():
                await self._recorder.close_block(change)
                if self._closed is not None:
                    self._closed(change)
            case Unknown(raw):
                log.warning("provider.unknown", raw=raw[:1000])
                self._recorder.notify("status", provider_event=raw)
            case str():
                self._delta(change)
            case _:
                assert_never(change)

    def told(self, round: Round, stop_reason: str) -> Round:
        """The round with what was told of it so far."""
        heard = self._heard
        if not heard.started:
            return replace(round, stop_reason=stop_reason)
        return replace(
            round,
            stop_reason=stop_reason,
            usage=heard.usage,
            data=heard.data,
            request_id=heard.request_id,
            first_delta_at=self._first_delta_at,
        )

    def left_open(self) -> list[Block]:
        """The blocks that no row holds yet; the reply is cut off with that."""
        return [change for change in (*self._ahead, *self._heard.interrupt()) if isinstance(change, Block)]

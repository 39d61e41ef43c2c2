"""The only writer during a run: it persists, then emits. No reader sees what no row holds, but for open text."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce, wraps
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from app.domain.blocks import TOOL_RESULT, Block, CallState
from app.domain.events import BlockStart, Notice
from app.domain.rounds import Round, add_usage
from app.domain.steps import VOIDED
from app.domain.turns import Status, Turn, TurnError, check_transition
from app.storage.record import Records
from app.stream.live import LiveView
from app.telemetry import PERSIST_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` whole even when the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it counts as seen: what comes next meets it again, if it matters
        raise


Write = Callable[Concatenate["Recorder", P], Coroutine[Any, Any, T]]


def _write(method: Write[P, T]) -> Write[P, T]:
    """One write: never cut in half between row and view, never beside another one of the same turn, and timed."""

    @wraps(method)
    async def write(self: "Recorder", *args: P.args, **kwargs: P.kwargs) -> T:
        async def alone() -> T:
            async with self.lock:
                start = perf_counter()
                result = await method(self, *args, **kwargs)
                PERSIST_SECONDS.labels(method.__name__).observe(perf_counter() - start)
                return result

        return await to_the_end(alone())

    return cast("Write[P, T]", write)


class Recorder:
    """Raises ClaimLost from every write once another attempt owns the turn."""

    def __init__(self, records: Records, view: LiveView) -> None:
        self._records = records
        self.view = view
        self.lock = asyncio.Lock()

    @property
    def turn(self) -> Turn:
        return self.view.turn

    def open_block(self, start: BlockStart) -> None:
        self.view.open_block(start)

    def append(self, text: str) -> None:
        self.view.append(text)

    def notify(self, event: str, **data: Any) -> None:
        self.view.notify(Notice(event, data))

    @_write
    async def begin_round(self, round: Round) -> None:
        await self._records.begin_round(round)
        self.view.begin_round(round)

    @_write
    async def close_block(self, block: Block) -> None:
        await self._records.close_block(block)
        self.view.close_block(block)

    @_write
    async def seal_round(self, round: Round, interrupted: Sequence[Block] = (), *, recoveries: int = 0) -> None:
        """Seals the last round. `interrupted` are the blocks that were open and stay as they are."""
        sealed = replace(round, sealed_by=self.turn.attempt, sealed_at=datetime.now(UTC))
        turn = replace(self.turn, usage=self._usage_with(sealed), recoveries=recoveries)
        await self._records.seal_round(sealed, interrupted, turn)
        for block in interrupted:
            self.view.close_block(block)
        self.view.seal_round(sealed, turn)

    @_write
    async def void_round(self, round: Round, *, recoveries: int) -> None:
        """Takes the last round back; its usage still counts. The turn goes on in a new attempt."""
        voided = replace(round, stop_reason=VOIDED)
        turn = replace(self.turn, usage=self._usage_with(voided), recoveries=recoveries)
        attempt = await self._records.void_round(voided, turn)
        self.view.void_round(voided, replace(turn, attempt=attempt))

    @_write
    async def start_calls(self, calls: Sequence[Block]) -> None:
        await self._records.start_calls(calls)

    @_write
    async def settle_call(self, call: Block, text: str, is_error: bool, state: CallState = "settled") -> None:
        result = Block(
            index=len(self.turn.blocks),
            round=call.round,
            attempt=self.turn.attempt,
            type=TOOL_RESULT,
            text=text,
            tool_use_id=call.tool_use_id,
            name=call.name,
            is_error=is_error,
        )
        await self._records.settle_call(result, state)
        if state == "settled":
            self.view.turn = replace(self.turn, recoveries=0)
        self.view.close_block(result)

    @_write
    async def end(self, status: Status, stop_reason: str, error: TurnError | None = None) -> None:
        check_transition(self.turn.status, status)
        turn = replace(self.turn, status=status, stop_reason=stop_reason, error=error)
        ended_at = await self._records.end(turn)
        self.view.end(replace(turn, ended_at=ended_at))

    @_write
    async def release(self) -> None:
        """Gives the turn back to the queue, as it is."""
        check_transition(self.turn.status, "queued")
        await self._records.release(self.view.block_being_written())

    def _usage_with(self, last: Round) -> dict[str, Any]:
        rounds = [*self.turn.rounds[:-1], last]
        return reduce(add_usage, (round.usage for round in rounds), {})

"""The tool calls of one turn: run in parallel, each settled as it ends, read-only ones started early."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter

from app.domain.blocks import Block
from app.domain.steps import tool_rounds
from app.domain.turns import ToolSpec
from app.engine.recorder import Recorder
from app.telemetry import TOOL_OUTCOMES, TOOL_SECONDS
from app.tools.tool import Outcome, ToolContext
from app.tools.toolset import Toolset

OUTCOME_UNKNOWN = (
    "The server stopped while this call was running. Find out whether it took effect before you call again."
)

Key = tuple[int, str | None]


class Calls:
    """Owns every tool task of a turn; `close` ends those that are left. `started_before` are the calls that an earlier
    attempt started and did not see the end of.
    """

    def __init__(
        self, recorder: Recorder, toolset: Toolset, owner: str, started_before: frozenset[Key] = frozenset()
    ) -> None:
        self._recorder = recorder
        self._toolset = toolset
        self._owner = owner
        self._started_before = started_before
        self._running: dict[Key, asyncio.Task[Outcome]] = {}
        self.first_started: float | None = None

    def start_early(self, block: Block) -> None:
        """Starts a call whose block just closed, if its tool only reads. Its outcome waits for the round's seal."""
        turn, spec = self._recorder.turn, self._spec(block.name)
        assert turn.request is not None
        within_limit = tool_rounds(turn.blocks) <= turn.request.limits.max_rounds
        if block.is_call and within_limit and spec is not None and spec.read_only:
            self._start(block)

    async def answer(self, calls: Sequence[Block], refusal: str | None) -> None:
        """Gives each call its one result. Raises ClaimLost."""
        if refusal is not None:
            for call in calls:
                await self._recorder.settle_call(call, refusal, True)
            return
        doubtful = [call for call in calls if self._may_have_happened(call)]
        for call in doubtful:
            await self._recorder.settle_call(call, OUTCOME_UNKNOWN, True, "unknown")
        runnable = [call for call in calls if call not in doubtful]
        if not runnable:
            return
        await self._recorder.start_calls(runnable)
        try:
            async with asyncio.TaskGroup() as group:
                for call in runnable:
                    group.create_task(self._settle(call))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def close(self) -> None:
        """Cancels what still runs and waits for it."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _may_have_happened(self, call: Block) -> bool:
        spec = self._spec(call.name)
        repeatable = spec is None or spec.read_only or spec.retry_safe
        return _key(call) in self._started_before and not repeatable

    async def _settle(self, call: Block) -> None:
        outcome = await self._start(call)
        self._running.pop(_key(call), None)
        await self._recorder.settle_call(call, outcome.text, outcome.is_error)

    def _start(self, call: Block) -> asyncio.Task[Outcome]:
        task = self._running.get(_key(call))
        if task is None:
            self.first_started = self.first_started or perf_counter()
            task = self._running[_key(call)] = asyncio.create_task(self._run(call))
        return task

    async def _run(self, call: Block) -> Outcome:
        turn = self._recorder.turn
        assert turn.request is not None
        assert call.name is not None
        assert call.tool_use_id is not None
        context = ToolContext(
            owner=self._owner,
            chat_id=turn.chat_id,
            turn_id=turn.id,
            tool_use_id=call.tool_use_id,
            idempotency_key=f"{turn.id}:{call.round}:{call.tool_use_id}",
            progress=partial(self._progress, call),
        )
        start = perf_counter()
        outcome = await self._toolset.run(call.name, call.text, context, offered=turn.request.tools)
        label = "(unknown)" if self._spec(call.name) is None else call.name
        TOOL_SECONDS.labels(label).observe(perf_counter() - start)
        TOOL_OUTCOMES.labels(label, outcome.kind).inc()
        return outcome

    def _progress(self, call: Block, message: str) -> None:
        self._recorder.notify("tool_progress", tool_use_id=call.tool_use_id, name=call.name, message=message)

    def _spec(self, name: str | None) -> ToolSpec | None:
        request = self._recorder.turn.request
        assert request is not None
        return next((spec for spec in request.tools if spec.name == name), None)


def _key(call: Block) -> Key:
    return call.round, call.tool_use_id

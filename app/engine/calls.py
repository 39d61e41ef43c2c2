"""The tool calls of one turn: run in parallel, each settled as it ends, read-only ones started early."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter

from app.domain.blocks import Block
from app.domain.steps import tool_rounds
from app.domain.turns import Turn
from app.engine.recorder import Recorder
from app.telemetry import TOOL_OUTCOMES, TOOL_SECONDS
from app.tools.tool import Outcome, ToolContext
from app.tools.toolset import Toolset

Key = tuple[int, str | None]


class Calls:
    """Owns every tool task of a turn; `close` ends those that are left."""

    def __init__(self, recorder: Recorder, toolset: Toolset, owner: str) -> None:
        self._recorder = recorder
        self._toolset = toolset
        self._owner = owner
        self._running: dict[Key, asyncio.Task[Outcome]] = {}
        self.first_started: float | None = None

    def start_early(self, block: Block) -> None:
        """Starts a call whose block just closed, if its tool only reads. Its outcome waits for the round's seal."""
        turn = self._recorder.turn
        assert turn.request is not None
        if (
            block.is_call
            and self._reads_only(turn, block.name)
            and tool_rounds(turn.blocks) <= turn.request.limits.max_rounds
        ):
            self._start(block)

    async def answer(self, calls: Sequence[Block], refusal: str | None) -> None:
        """Gives each call its one result. Raises ClaimLost."""
        if refusal is not None:
            for call in calls:
                await self._recorder.settle_call(call, refusal, True)
            return
        await self._recorder.start_calls(calls)
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
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
        offered = {spec.name for spec in turn.request.tools}
        outcome = await self._toolset.run(call.name, call.text, context, offered=offered)
        label = call.name if call.name in offered else "(unknown)"
        TOOL_SECONDS.labels(label).observe(perf_counter() - start)
        TOOL_OUTCOMES.labels(label, outcome.kind).inc()
        return outcome

    def _progress(self, call: Block, message: str) -> None:
        self._recorder.notify("tool_progress", tool_use_id=call.tool_use_id, name=call.name, message=message)

    @staticmethod
    def _reads_only(turn: Turn, name: str | None) -> bool:
        assert turn.request is not None
        return any(spec.name == name and spec.read_only for spec in turn.request.tools)


def _key(call: Block) -> Key:
    return call.round, call.tool_use_id

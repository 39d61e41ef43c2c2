"""Runs one tool by its policy: when it may start, how long it may take, how often it is tried."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from math import ceil

import structlog

from app.tools.running.attempts import Attempt, Backoff, Notes, attempts, broken
from app.tools.running.state import ToolState, ToolStates
from app.tools.tool import Outcome, Tool, ToolContext

log = structlog.get_logger(__name__)

# Seconds: who waits for less does not notice.
_NOTICEABLE = 1.0


class Runner:
    """`max_parallel` calls run at once. A tool that was told to stop is waited for `patience` seconds and then left to
    itself.
    """

    def __init__(self, max_parallel: int, patience: float, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._slots = asyncio.Semaphore(max_parallel)
        self._patience = patience
        self._backoff = backoff
        self._clock = clock
        self._lanes = ToolStates(clock)
        self._abandoned: set[asyncio.Task[Attempt]] = set()

    async def run(self, tool: Tool, input_json: str, context: ToolContext) -> Outcome:
        """Raises only CancelledError, after the tool has stopped or was abandoned."""
        notes: Notes = {}
        with self._lanes.lane(tool.spec, tool.policy, context.owner) as lane:
            outcome = await self._in_turn(lane, tool, input_json, context, notes)
        return replace(outcome, notes={**outcome.notes, **notes})

    async def _in_turn(
        self, lane: ToolState, tool: Tool, input_json: str, context: ToolContext, notes: Notes
    ) -> Outcome:
        if (wait := lane.circuit.wait) is not None:
            return _left_alone(tool, wait, notes)
        async with self._slot(lane, notes):
            if (wait := lane.circuit.wait) is not None:  # it opened while this call waited
                return _left_alone(tool, wait, notes)
            with lane.circuit.trial():
                made = await self._timed(tool, input_json, context, notes)
                _judge(lane, made)
        return made.outcome

    @asynccontextmanager
    async def _slot(self, lane: ToolState, notes: Notes) -> AsyncIterator[None]:
        """The tool's own slot first: who waits for it keeps no other tool from running."""
        start = self._clock()
        async with lane.slots or nullcontext(), self._slots:
            if (waited := self._clock() - start) >= _NOTICEABLE:
                notes["waited"] = round(waited, 1)
            yield

    async def _timed(self, tool: Tool, input_json: str, context: ToolContext, notes: Notes) -> Attempt:
        trying = attempts(tool, input_json, context, notes, self._backoff)
        task = asyncio.create_task(trying, name=f"tool {tool.spec.name}")
        try:
            await asyncio.wait({task}, timeout=tool.policy.timeout)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            notes["timeout"] = tool.policy.timeout
            return Attempt(_timed_out(tool), broke=True)
        if task.cancelled():  # by the tool itself: a cancellation of ours has left through the await above
            return broken(tool, asyncio.CancelledError())
        error = task.exception()
        return task.result() if error is None else broken(tool, error)

    async def _stop(self, task: asyncio.Task[Attempt]) -> None:
        if task.done():
            return
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=self._patience)
        finally:
            if not task.done():
                log.error("tool.abandoned", patience=self._patience)
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned.discard)


def _judge(lane: ToolState, made: Attempt) -> None:
    if made.broke:
        lane.circuit.failed()
    elif made.outcome.kind != "bad_input":  # which says nothing of the tool
        lane.circuit.succeeded()


def _left_alone(tool: Tool, wait: float, notes: Notes) -> Outcome:
    notes["breaker"] = "open"
    when = f"in {ceil(wait)} s" if wait else "in a moment"
    text = f"The tool {tool.spec.name} is not available: its last calls failed. It may be tried again {when}."
    return Outcome(text, kind="unavailable")


def _timed_out(tool: Tool) -> Outcome:
    text = f"The tool {tool.spec.name} was stopped: it did not finish within {tool.policy.timeout:g} s."
    if not tool.spec.read_only:
        text += " What it had done by then is not known."
    return Outcome(text, kind="timeout")

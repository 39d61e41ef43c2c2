"""The limits of a tool's calls: its breaker, its slots and its timeout."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import ceil

import structlog

from app.tools.running.state import ToolStates
from app.tools.running.tries import Backoff, Notes, Try, broken, retry
from app.tools.tool import Outcome, Tool, ToolContext

log = structlog.get_logger(__name__)

_SHORTEST_NOTED_WAIT = 1.0  # seconds


class Limiter:
    """Runs `max_parallel` calls at once. A cancelled tool has `patience` seconds to stop; then it is abandoned."""

    def __init__(self, max_parallel: int, patience: float, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._slots = asyncio.Semaphore(max_parallel)
        self._patience = patience
        self._backoff = backoff
        self._clock = clock
        self._states = ToolStates(clock)
        self._abandoned: set[asyncio.Task[Try]] = set()

    async def call(self, tool: Tool, input_json: str, context: ToolContext) -> Outcome:
        """Calls a tool within its limits. Raises only CancelledError, after the tool has stopped or was abandoned."""
        notes: Notes = {}
        with self._states.of(tool.spec, tool.policy, context.owner) as state:
            if (wait := state.circuit.wait) is None:
                start = self._clock()
                # The tool's own slot first: a call that waits for it keeps no other tool from running.
                async with state.slots or nullcontext(), self._slots:
                    if (waited := self._clock() - start) >= _SHORTEST_NOTED_WAIT:
                        notes["waited"] = round(waited, 1)
                    if (wait := state.circuit.wait) is None:  # again: it may have opened while this call waited
                        with state.circuit.trial():
                            last = await self._time(tool, input_json, context, notes)
                        if last.broke:
                            state.circuit.failed()
                        elif last.outcome.kind != "bad_input":  # a bad input is no failure of the tool
                            state.circuit.succeeded()
                        return replace(last.outcome, notes={**last.outcome.notes, **notes})
        when = f"in {ceil(wait)} s" if wait else "in a moment"
        text = f"The tool {tool.spec.name} is not available: its last calls failed. It may be tried again {when}."
        return Outcome(text, kind="unavailable", notes={**notes, "breaker": "open"})

    async def _time(self, tool: Tool, input_json: str, context: ToolContext, notes: Notes) -> Try:
        tries = retry(tool, input_json, context, notes, self._backoff)
        task = asyncio.create_task(tries, name=f"tool {tool.spec.name}")
        try:
            await asyncio.wait({task}, timeout=tool.policy.timeout)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            notes["timeout"] = tool.policy.timeout
            return Try(_timed_out(tool), broke=True)
        if task.cancelled():  # the tool cancelled itself: a cancellation of this call has left at the await above
            return broken(tool, asyncio.CancelledError())
        error = task.exception()
        return task.result() if error is None else broken(tool, error)

    async def _stop(self, task: asyncio.Task[Try]) -> None:
        if task.done():
            return
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=self._patience)
        finally:
            if not task.done():
                log.error("tool.abandoned", patience=self._patience)
                self._abandoned.add(task)  # a task that nothing refers to may be garbage-collected while it runs
                task.add_done_callback(self._abandoned.discard)


def _timed_out(tool: Tool) -> Outcome:
    text = f"The tool {tool.spec.name} was stopped: it did not finish within {tool.policy.timeout:g} s."
    if not tool.spec.read_only:
        text += " What it had done by then is not known."
    return Outcome(text, kind="timeout")

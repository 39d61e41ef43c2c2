"""The limits of a tool's calls: its breaker, its slots and its timeout."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic

import structlog

from turnstream.domain.turns import ToolSpec
from turnstream.kit.circuit import OwnersCircuit
from turnstream.kit.clock import CLOCK
from turnstream.tools.policy import Policy
from turnstream.tools.running.slots import Slots
from turnstream.tools.running.tries import Backoff, Notes, Try, broken, retry
from turnstream.tools.tool import AskPerson, Outcome, PersonAnswer, PersonQuestion, Tool, ToolContext

log = structlog.get_logger(__name__)

_SHORTEST_NOTED_WAIT = 1.0  # seconds


# The name of a tool; if a request declared the tool, also its URL and the owner.
_Key = tuple[str, str | None, str | None]


@dataclass(slots=True)
class ToolState:
    circuit: OwnersCircuit
    slots: Slots | None
    calls: int = 0


class ToolStates:
    """Keeps a state for each running or recently failed tool, up to about `limit` states for tools of requests."""

    def __init__(self, clock: Callable[[], float], limit: int = 1000) -> None:
        self._clock = clock
        self._limit = limit
        self._states: dict[_Key, ToolState] = {}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def of(self, spec: ToolSpec, policy: Policy, owner: str) -> Iterator[ToolState]:
        """Yields the state of a tool, for the duration of one call."""
        key = (spec.name, None, None) if spec.http is None else (spec.name, spec.http.url, owner)
        state = self._states.pop(key, None)
        if state is None:
            slots = None if policy.concurrency is None else Slots(policy.concurrency)
            breaker = policy.breaker
            limit, pause = (breaker.failures, breaker.pause) if breaker else (None, 0.0)
            state = ToolState(OwnersCircuit(limit, pause, self._clock), slots)
        self._states[key] = state  # at the end: the first in the dict is the least recently used
        state.calls += 1
        try:
            yield state
        finally:
            state.calls -= 1
            if not state.calls and not state.circuit.failing:
                del self._states[key]
            elif spec.http is not None and len(self._states) > self._limit:
                idle = (key for key, each in self._states.items() if not each.calls and key[1] is not None)
                if (oldest := next(idle, None)) is not None:
                    del self._states[oldest]


class TimeLimit:
    """The time limit of one call, in seconds. The time stops while a question to a person is open."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._asking = 0
        self._changed = asyncio.Event()

    def paused(self, ask: AskPerson) -> AskPerson:
        """Wraps `ask` so that the time stops until the answer."""

        async def asking(question: PersonQuestion) -> PersonAnswer | None:
            self._asking += 1
            self._changed.set()
            try:
                return await ask(question)
            finally:
                self._asking -= 1
                self._changed.set()

        return asking

    async def wait(self, task: asyncio.Task[Try]) -> None:
        """Waits until the task is done or its time is up."""
        while not task.done() and (self._asking or self._left > 0):
            start, asking = monotonic(), self._asking
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            try:
                timeout = None if asking else self._left
                await asyncio.wait({task, changed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if not asking:
                self._left -= monotonic() - start


class Limiter:
    """Runs a call in one of `slots`; if a request declared the tool, in one of `declared`. A cancelled tool has
    `patience` seconds to stop; then the limiter abandons it.
    """

    def __init__(
        self, slots: Slots, declared: Slots, patience: float, backoff: Backoff, clock: Callable[[], float]
    ) -> None:
        self._slots = slots
        self._declared = declared
        self._patience = patience
        self._backoff = backoff
        self._clock = clock
        self._states = ToolStates(clock)
        self._abandoned: set[asyncio.Task[Try]] = set()

    async def call(self, tool: Tool, input_json: str, context: ToolContext) -> Outcome:
        """Calls a tool within its limits. Raises only CancelledError, after the tool has stopped or was abandoned."""
        notes: Notes = {}
        owner = context.owner
        with self._states.of(tool.spec, tool.policy, owner) as state:
            if (wait := state.circuit.wait(owner)) is None:
                start = self._clock()
                # The call waits for the tool's own slot first, so that a waiting call blocks no other tool.
                slots = self._slots if tool.spec.http is None else self._declared
                own = nullcontext() if state.slots is None else state.slots.slot(owner)
                # A job uses a slot of its runner instead, because a job may take hours.
                async with own, nullcontext() if tool.policy.background else slots.slot(owner):
                    if (waited := self._clock() - start) >= _SHORTEST_NOTED_WAIT:
                        notes["waited"] = round(waited, 1)
                    if (wait := state.circuit.wait(owner)) is None:  # the breaker may have opened meanwhile
                        with state.circuit.trial(owner):
                            last = await self._time(tool, input_json, context, notes)
                        if last.broke:
                            if failures := state.circuit.failed(owner):
                                pause = ceil(state.circuit.wait(owner) or 0.0)
                                log.warning("tool.breaker_open", owner=owner, failures=failures, pause=pause)
                        # A bad input is no failure of the tool.
                        elif last.outcome.kind != "bad_input" and state.circuit.succeeded(owner):
                            log.info("tool.breaker_closed")
                        return replace(last.outcome, notes={**last.outcome.notes, **notes})
        when = f"in {ceil(wait)} s" if wait else "in a moment"
        text = f"The tool {tool.spec.name} is not available: its last calls failed. It may be tried again {when}."
        return Outcome(text, kind="unavailable", notes={**notes, "breaker": "open"})

    async def _time(self, tool: Tool, input_json: str, context: ToolContext, notes: Notes) -> Try:
        left = None if context.deadline is None else (context.deadline - CLOCK.now()).total_seconds()
        limit = TimeLimit(tool.policy.seconds if left is None else left)
        if context.ask is not None:
            context = replace(context, ask=limit.paused(context.ask))
        tries = retry(tool, input_json, context, notes, self._backoff)
        task = asyncio.create_task(tries, name=f"tool {tool.spec.name}")
        try:
            await limit.wait(task)
            in_time = task.done()
        finally:
            await self._stop(task)
        if not in_time:
            notes["timeout"] = seconds = tool.policy.seconds
            text = f"The tool {tool.spec.name} was stopped: it did not finish within {seconds:g} s."
            if not tool.spec.read_only:
                text += " Its effects until then are unknown."
            return Try(Outcome(text, kind="timeout"), broke=True)
        if task.cancelled():  # the tool has cancelled itself: a cancellation of this call raises at the await above
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
                self._abandoned.add(task)  # without a reference, Python may garbage-collect a running task
                task.add_done_callback(self._abandoned.discard)

"""The state of each tool on this replica: its circuit breaker and its slots."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from app.domain.turns import ToolSpec
from app.tools.policy import Breaker, Policy

log = structlog.get_logger(__name__)

# The name; for a tool that came with a request also its URL and the owner.
_Key = tuple[str, str | None, str | None]


class Circuit:
    """A circuit breaker. Closed until `failures` calls in a row have failed, then open for `pause` seconds; after that
    one call at a time may try. Without a breaker it never opens.
    """

    def __init__(self, breaker: Breaker | None, clock: Callable[[], float]) -> None:
        self._breaker = breaker
        self._clock = clock
        self.failures = 0  # calls in a row
        self._open_until = 0.0
        self._on_trial = False

    @property
    def wait(self) -> float | None:
        """Seconds until a call may be made; None when one may be made now, 0 while another call is the trial."""
        if not self._tripped:
            return None
        left = self._open_until - self._clock()
        return max(left, 0.0) if left > 0 or self._on_trial else None

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Encloses every call. The first call to a tripped circuit keeps the others out until it has ended."""
        mine = self._tripped
        self._on_trial = self._on_trial or mine
        try:
            yield
        finally:
            self._on_trial = self._on_trial and not mine

    def succeeded(self) -> None:
        if self._tripped:
            log.info("tool.breaker_closed")
        self.failures = 0

    def failed(self) -> None:
        if self._breaker is None:
            return
        self.failures += 1
        # A call that began before the circuit opened may fail late: that must not extend the pause.
        if self._tripped and self._clock() >= self._open_until:
            self._open_until = self._clock() + self._breaker.pause
            log.warning("tool.breaker_open", failures=self.failures, pause=self._breaker.pause)

    @property
    def _tripped(self) -> bool:
        return self._breaker is not None and self.failures >= self._breaker.failures


@dataclass(slots=True)
class ToolState:
    circuit: Circuit
    slots: asyncio.Semaphore | None
    calls: int = 0


class ToolStates:
    """One state for each tool that is running or has failed lately. Of failed tools that came with requests, about
    `limit` are remembered.
    """

    def __init__(self, clock: Callable[[], float], limit: int = 1000) -> None:
        self._clock = clock
        self._limit = limit
        self._states: dict[_Key, ToolState] = {}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def of(self, spec: ToolSpec, policy: Policy, owner: str) -> Iterator[ToolState]:
        """The state of a tool for the time of one call."""
        key = (spec.name, None, None) if spec.http is None else (spec.name, spec.http.url, owner)
        state = self._states.pop(key, None)
        if state is None:
            slots = None if policy.concurrency is None else asyncio.Semaphore(policy.concurrency)
            state = ToolState(Circuit(policy.breaker, self._clock), slots)
        self._states[key] = state  # at the end: the first one in the dict is the one unused for longest
        state.calls += 1
        try:
            yield state
        finally:
            state.calls -= 1
            if not state.calls and not state.circuit.failures:
                del self._states[key]
            elif spec.http is not None and len(self._states) > self._limit:
                self._evict()

    def _evict(self) -> None:
        idle = (key for key, state in self._states.items() if not state.calls and key[1] is not None)
        if (oldest := next(idle, None)) is not None:
            del self._states[oldest]

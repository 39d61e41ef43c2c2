"""What this replica knows of a tool besides its policy: how its last calls went, and how many run."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.domain.turns import ToolSpec
from app.tools.policy import Policy
from app.tools.running.breaker import Circuit

# The name; for a tool that came with a request also where it is and whose it is.
Key = tuple[str, str | None, str | None]


@dataclass(slots=True)
class ToolState:
    circuit: Circuit
    slots: asyncio.Semaphore | None
    calls: int = 0

    @property
    def idle(self) -> bool:
        return self.calls == 0


class ToolStates:
    """One lane for each tool that is being called or has failed lately. Of failed ones that came with requests, about
    `most` are remembered.
    """

    def __init__(self, clock: Callable[[], float], most: int = 1000) -> None:
        self._clock = clock
        self._most = most
        self._lanes: dict[Key, ToolState] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    @contextmanager
    def lane(self, spec: ToolSpec, policy: Policy, owner: str) -> Iterator[ToolState]:
        key = (spec.name, None, None) if spec.http is None else (spec.name, spec.http.url, owner)
        lane = self._lanes.pop(key) if key in self._lanes else self._new(policy)
        self._lanes[key] = lane
        lane.calls += 1
        try:
            yield lane
        finally:
            lane.calls -= 1
            if lane.idle and not lane.circuit.failures:
                del self._lanes[key]
            elif spec.http is not None:
                self._forget()

    def _new(self, policy: Policy) -> ToolState:
        slots = None if policy.concurrency is None else asyncio.Semaphore(policy.concurrency)
        return ToolState(Circuit(policy.breaker, self._clock), slots)

    def _forget(self) -> None:
        """Drops the one that has been idle longest, when they are too many."""
        if len(self._lanes) > self._most:
            idle = (key for key, lane in self._lanes.items() if lane.idle and key[1] is not None)
            if (oldest := next(idle, None)) is not None:
                del self._lanes[oldest]

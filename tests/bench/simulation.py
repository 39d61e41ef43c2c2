"""A cell in simulated time: random arrivals of turns, replicas with one CPU each, and their Postgres.

A process is a generator that yields its waits in seconds. Queues are first come, first served, so the end of work is
known when the work is queued.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import inf

from tests.bench.sizing import Costs, Traffic, work_of
from turnstream.engine.frame_clock import TICK

Process = Iterator[float]
REPLACED = 30.0  # seconds from the death of a replica to the start of its replacement


class Simulation:
    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Process]] = []
        self._numbers = count()

    def start(self, process: Process, after: float = 0.0) -> None:
        heappush(self._waiting, (self.now + after, next(self._numbers), process))

    def run(self, until: float) -> None:
        while self._waiting and self._waiting[0][0] <= until:
            self.now, _, process = heappop(self._waiting)
            pause = next(process, None)
            if pause is not None:
                self.start(process, pause)
        self.now = until


class Cores:
    """CPUs that share one queue."""

    def __init__(self, simulation: Simulation, number: int = 1) -> None:
        self.busy = 0.0
        self._simulation = simulation
        self._free_at = [0.0] * number

    def work(self, seconds: float) -> float:
        """Queues work. Returns the seconds until its end, including the work that is queued before it."""
        done = max(self._simulation.now, self._free_at[0]) + seconds
        heapreplace(self._free_at, done)
        self.busy += seconds
        return done - self._simulation.now

    def stop(self, seconds: float) -> None:
        """Suspends all work for `seconds`."""
        self._free_at = [max(self._simulation.now, each) + seconds for each in self._free_at]


@dataclass(slots=True)
class Replica:
    cpu: Cores
    streaming: int = 0  # turns whose text is being streamed
    died_at: float = inf


@dataclass(slots=True)
class Outcome:
    """The outcome of a simulation, with times in seconds. `begun` has the arrival of each turn and its wait until its
    model call. `taken_over` has the times from the death of a turn's replica to the next model call.
    """

    begun: list[tuple[float, float]] = field(default_factory=list)
    taken_over: list[float] = field(default_factory=list)
    ended: int = 0

    def waits(self, since: float = 0.0, until: float = inf) -> list[float]:
        """Returns the waits of the turns that arrived within this period, in ascending order."""
        return sorted(wait for asked_at, wait in self.begun if since <= asked_at < until)


class Cell:
    """Replicas with one CPU each, and their Postgres. Half of a turn's cost precedes its model call.

    The turns of a dead replica return to the queue after `noticed` seconds.
    """

    def __init__(
        self,
        traffic: Traffic,
        costs: Costs,
        replicas: int,
        postgres_cores: int,
        *,
        noticed: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.simulation = Simulation()
        self.postgres = Cores(self.simulation, postgres_cores)
        self.replicas: list[Replica] = []
        self.outcome = Outcome()
        self._traffic = traffic
        self._second = costs.second
        self._work = work_of(traffic, costs)
        self._noticed = noticed
        self._chance = random.Random(seed)
        for _ in range(replicas):
            self._add_replica()
        self.simulation.start(self._arrivals())

    def run(self, seconds: float) -> Outcome:
        self.simulation.run(self.simulation.now + seconds)
        return self.outcome

    def death(self) -> Process:
        """Removes one replica, and adds its replacement later."""
        self.replicas.pop(0).died_at = self.simulation.now
        yield REPLACED
        self._add_replica()

    def _add_replica(self) -> None:
        replica = Replica(Cores(self.simulation))
        self.replicas.append(replica)
        self.simulation.start(self._beats(replica), self._chance.uniform(0, TICK))

    def _beats(self, replica: Replica) -> Process:
        """Models the frame clock: each beat sends the new text of all turns."""
        while replica.died_at == inf:
            work = TICK * (self._second + replica.streaming * self._work.text_second)
            yield max(TICK, replica.cpu.work(work))

    def _arrivals(self) -> Process:
        while True:
            yield self._chance.expovariate(self._traffic.turns)
            self.simulation.start(self._turn())

    def _turn(self) -> Process:
        asked_at, text = self.simulation.now, self._chance.expovariate(1 / self._traffic.text_seconds)
        replica = self._chance.choice(self.replicas)
        yield from self._half(replica)
        self.outcome.begun.append((asked_at, self.simulation.now - asked_at))
        text = yield from self._stream(replica, text)
        while text > 0:
            died_at = replica.died_at
            yield max(0.0, died_at + self._noticed - self.simulation.now)
            replica = self._chance.choice(self.replicas)
            yield from self._half(replica)
            self.outcome.taken_over.append(self.simulation.now - died_at)
            text = yield from self._stream(replica, text)
        yield from self._half(replica)
        self.outcome.ended += 1

    def _half(self, replica: Replica) -> Process:
        yield replica.cpu.work(self._work.turn / 2)
        yield self.postgres.work(self._work.postgres_turn / 2)

    def _stream(self, replica: Replica, text: float) -> Generator[float, None, float]:
        """Streams text. Returns the seconds of text that are still missing, which is 0 unless the replica died."""
        yield self._traffic.silence
        replica.streaming += 1
        while text > 0 and replica.died_at == inf:
            piece, began_at = min(1.0, text), self.simulation.now
            self.postgres.work(piece * self._work.postgres_second)  # the journal, for which no reader waits
            yield piece
            text -= min(piece, replica.died_at - began_at)
        replica.streaming -= 1
        return text


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[int((len(ordered) - 1) * share)]

"""Circuit breakers: after several failures in a row, calls are refused for a while."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The number of owners whose calls must have failed before a breaker opens for all owners.
SEVERAL = 3
_MOST_OWNERS = 1000


class Circuit:
    """A circuit breaker. Closed until `limit` calls in a row have failed, then open for `pause` seconds. After the
    pause, one trial call at a time may begin. Without a limit the breaker never opens. `clock` returns seconds.
    """

    def __init__(self, limit: int | None, pause: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self.failures = 0  # failed calls in a row
        self._open_until = 0.0
        self._on_trial = False

    @property
    def wait(self) -> float | None:
        """The seconds until a call may begin; None if a call may begin now, 0 while another call is the trial."""
        if not self.tripped:
            return None
        left = self._open_until - self._clock()
        return max(left, 0.0) if left > 0 or self._on_trial else None

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Must enclose every call. The first call to a tripped circuit is a trial, which excludes other calls."""
        mine = self.tripped
        self._on_trial = self._on_trial or mine
        try:
            yield
        finally:
            self._on_trial = self._on_trial and not mine

    def succeeded(self) -> bool:
        """Records a success, and returns whether the success closed the circuit."""
        closed, self.failures = self.tripped, 0
        return closed

    def failed(self) -> bool:
        """Records a failure, and returns whether the failure opened the circuit."""
        if self._limit is None:
            return False
        self.failures += 1
        # A call that began before the circuit opened may fail late. Such a failure must not extend the pause.
        opened = self.tripped and self._clock() >= self._open_until
        if opened:
            self._open_until = self._clock() + self._pause
        return opened

    @property
    def tripped(self) -> bool:
        return self._limit is not None and self.failures >= self._limit


class OwnersCircuit:
    """The circuit breaker of a service that many owners call. It opens for one owner after `limit` failures in a row of
    that owner, and for all owners after as many failures in a row of at least three owners. Each owner contributes at
    most an equal part of these failures, so that failing inputs of one owner exclude no other owner.
    """

    def __init__(self, limit: int | None, pause: float, clock: Callable[[], float]) -> None:
        self._limit, self._pause, self._clock = limit, pause, clock
        most = None if limit is None else max(limit, SEVERAL)
        self._share = 0 if most is None else -(-most // SEVERAL)
        self._all = Circuit(most, pause, clock)
        self._in_a_row: Counter[str] = Counter()  # an owner's failures that count for all owners
        self._owners: dict[str, Circuit] = {}  # the owners whose last call failed

    @property
    def failing(self) -> bool:
        """Whether the last call of any owner failed."""
        return bool(self._owners)

    @property
    def tripped(self) -> bool:
        """Whether the breaker is open for at least one owner, or waits for a trial to succeed."""
        return self._all.tripped or any(circuit.tripped for circuit in self._owners.values())

    def wait(self, owner: str) -> float | None:
        """Returns the wait for a call of the owner, as `Circuit.wait` does."""
        waits = [circuit.wait for circuit in (self._all, self._owners.get(owner)) if circuit is not None]
        return max((wait for wait in waits if wait is not None), default=None)

    @contextmanager
    def trial(self, owner: str) -> Iterator[None]:
        """Must enclose every call of the owner."""
        own = self._owners.get(owner) or Circuit(self._limit, self._pause, self._clock)
        with self._all.trial(), own.trial():
            yield

    def succeeded(self, owner: str) -> bool:
        """Records a success, and returns whether the success closed the circuit."""
        self._in_a_row.clear()
        own = self._owners.pop(owner, None)
        closed = own is not None and own.succeeded()
        return self._all.succeeded() or closed

    def failed(self, owner: str) -> int:
        """Records a failure. Returns the number of failures that opened the circuit; 0 if it did not open."""
        if self._limit is None:
            return 0
        own = self._owners.pop(owner, None) or Circuit(self._limit, self._pause, self._clock)
        self._owners[owner] = own  # at the end, so that the first owner is the owner whose last failure is oldest
        if len(self._owners) > _MOST_OWNERS:
            del self._owners[next(iter(self._owners))]
        opened = own.failures if own.failed() else 0
        # While the breaker is open for all owners, each failed trial opens it again.
        if self._all.tripped or self._in_a_row[owner] < self._share:
            self._in_a_row[owner] += 1
            opened = self._all.failures if self._all.failed() else opened
        return opened

"""Circuit breakers: what has failed several times in a row is left alone for a while."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Owners whose calls must have failed before a breaker opens for all.
SEVERAL = 3
_MOST_OWNERS = 1000


class Circuit:
    """A circuit breaker. Closed until `limit` calls in a row have failed, then open for `pause` seconds; after that one
    call at a time may try. Without a limit it never opens. `clock` gives seconds.
    """

    def __init__(self, limit: int | None, pause: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self.failures = 0  # calls in a row
        self._open_until = 0.0
        self._on_trial = False

    @property
    def wait(self) -> float | None:
        """Seconds until a call may be made; None when one may be made now, 0 while another call is the trial."""
        if not self.tripped:
            return None
        left = self._open_until - self._clock()
        return max(left, 0.0) if left > 0 or self._on_trial else None

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Encloses every call. The first call to a tripped circuit keeps the others out until it has ended."""
        mine = self.tripped
        self._on_trial = self._on_trial or mine
        try:
            yield
        finally:
            self._on_trial = self._on_trial and not mine

    def succeeded(self) -> bool:
        """Returns whether this closed the circuit."""
        closed, self.failures = self.tripped, 0
        return closed

    def failed(self) -> bool:
        """Returns whether this opened the circuit."""
        if self._limit is None:
            return False
        self.failures += 1
        # A call that began before the circuit opened may fail late: that must not extend the pause.
        opened = self.tripped and self._clock() >= self._open_until
        if opened:
            self._open_until = self._clock() + self._pause
        return opened

    @property
    def tripped(self) -> bool:
        return self._limit is not None and self.failures >= self._limit


class OwnersCircuit:
    """The circuit breaker of something that many owners call. It opens for an owner after `limit` failures of that
    owner in a row, and for all after as many in a row of at least three owners. These are counted in equal parts:
    inputs of one owner that fail keep nobody else out.
    """

    def __init__(self, limit: int | None, pause: float, clock: Callable[[], float]) -> None:
        self._limit, self._pause, self._clock = limit, pause, clock
        most = None if limit is None else max(limit, SEVERAL)
        self._share = 0 if most is None else -(-most // SEVERAL)
        self._all = Circuit(most, pause, clock)
        self._in_a_row: Counter[str] = Counter()  # failures that count for all
        self._owners: dict[str, Circuit] = {}  # of those whose last call failed

    @property
    def failing(self) -> bool:
        """Whether the last call of any owner failed."""
        return bool(self._owners)

    @property
    def tripped(self) -> bool:
        """Whether it is open for anyone, or waits for a trial to succeed."""
        return self._all.tripped or any(circuit.tripped for circuit in self._owners.values())

    def wait(self, owner: str) -> float | None:
        """As in a Circuit, for a call of the owner."""
        waits = [circuit.wait for circuit in (self._all, self._owners.get(owner)) if circuit is not None]
        return max((wait for wait in waits if wait is not None), default=None)

    @contextmanager
    def trial(self, owner: str) -> Iterator[None]:
        """Encloses every call."""
        own = self._owners.get(owner) or Circuit(self._limit, self._pause, self._clock)
        with self._all.trial(), own.trial():
            yield

    def succeeded(self, owner: str) -> bool:
        """Returns whether this closed the circuit."""
        self._in_a_row.clear()
        own = self._owners.pop(owner, None)
        closed = own is not None and own.succeeded()
        return self._all.succeeded() or closed

    def failed(self, owner: str) -> int:
        """Returns after how many failures this opened the circuit; 0 if it did not."""
        if self._limit is None:
            return 0
        own = self._owners.pop(owner, None) or Circuit(self._limit, self._pause, self._clock)
        self._owners[owner] = own  # at the end: the first is the one that has not failed for longest
        if len(self._owners) > _MOST_OWNERS:
            del self._owners[next(iter(self._owners))]
        opened = own.failures if own.failed() else 0
        # While it is open for all, each failure of a trial opens it again.
        if self._all.tripped or self._in_a_row[owner] < self._share:
            self._in_a_row[owner] += 1
            opened = self._all.failures if self._all.failed() else opened
        return opened

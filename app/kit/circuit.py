"""Circuit breakers: what has failed several times in a row is left alone for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


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

    def succeeded(self) -> bool:
        """Returns whether this closed the circuit."""
        closed, self.failures = self._tripped, 0
        return closed

    def failed(self) -> bool:
        """Returns whether this opened the circuit."""
        if self._limit is None:
            return False
        self.failures += 1
        # A call that began before the circuit opened may fail late: that must not extend the pause.
        opened = self._tripped and self._clock() >= self._open_until
        if opened:
            self._open_until = self._clock() + self._pause
        return opened

    @property
    def _tripped(self) -> bool:
        return self._limit is not None and self.failures >= self._limit

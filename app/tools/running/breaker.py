"""A circuit breaker: a tool that fails again and again is left alone for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from app.tools.policy import Breaker

log = structlog.get_logger(__name__)


class Circuit:
    """Closed until `failures` calls in a row failed, then open for a `pause`; after it, one call at a time may try.
    Without a breaker it never opens.
    """

    def __init__(self, breaker: Breaker | None, clock: Callable[[], float]) -> None:
        self._breaker = breaker
        self._clock = clock
        self.failures = 0  # calls in a row
        self._open_until = 0.0
        self._tried = False

    @property
    def wait(self) -> float | None:
        """Seconds until a call may be made, or None when it may now. 0 while another one tries."""
        if not self._tripped:
            return None
        left = self._open_until - self._clock()
        return max(left, 0.0) if left > 0 or self._tried else None

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Around every call: of those that meet a tripped circuit, the first keeps the others out."""
        mine = self._tripped
        self._tried = self._tried or mine
        try:
            yield
        finally:
            self._tried = self._tried and not mine

    def succeeded(self) -> None:
        if self._tripped:
            log.info("tool.breaker_closed")
        self.failures = 0

    def failed(self) -> None:
        if self._breaker is None:
            return
        self.failures += 1
        if self._tripped and self._clock() >= self._open_until:
            self._open_until = self._clock() + self._breaker.pause
            log.warning("tool.breaker_open", failures=self.failures, pause=self._breaker.pause)

    @property
    def _tripped(self) -> bool:
        return self._breaker is not None and self.failures >= self._breaker.failures

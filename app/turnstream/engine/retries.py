"""Limits for calls of a failing provider: the retries of a call, and the longest wait for a silent stream."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from turnstream.domain.errors import PermanentError, TransientError
from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.text import sentence


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Allows at most `most` consecutive retries. The wait begins at `base` seconds and doubles up to `longest`, with
    jitter. A provider may request a longer wait, up to `max_retry_after` seconds, but not a shorter one. After a rate
    limit or an overload, the wait is at least `busy` seconds: neither usually ends sooner, and each retry counts
    against the limit. If `waits` is false, no retry waits.
    """

    most: int = 5
    base: float = 0.5
    longest: float = 8.0
    busy: float = 1.0
    max_retry_after: float = 60.0
    waits: bool = True


class Retries:
    """Counts the retries of a turn since its last successful call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._spent = 0

    def reset(self) -> None:
        self._spent = 0

    def delay(self, error: TransientError, *, charged: bool) -> float:
        """Returns the seconds to wait before the next retry. Raises PermanentError if no retry is left.

        Only a `charged` retry counts here. Failures after the first delta count in `recoveries` of the rows instead.
        """
        if charged and self._spent >= self._policy.most:
            raise _given_up(error, error.message)
        policy, asked = self._policy, error.retry_after or 0.0
        if asked > policy.max_retry_after:
            message = f"{sentence(error.message)} The provider asks to wait {asked:g} s."
            raise _given_up(error, message)
        self._spent += charged
        if not policy.waits:
            return 0.0
        wait, jitter = backoff(max(1, self._spent), policy.base, policy.longest), jittered(1.0)
        least = max(asked, policy.busy if error.busy else 0.0)
        # Jitter is added, because otherwise all refused turns would retry at the same time.
        return max(wait * jitter, least * (1.0 + 0.1 * jitter))


def _given_up(error: TransientError, message: str) -> PermanentError:
    return PermanentError(error.type, message, request_id=error.request_id, retry_after=error.retry_after)


class StallTimeout:
    """A context that limits each wait for the provider, from `wait` to `pause`: after 1 to 1.25 times `seconds`, it
    raises TransientError.

    A timer checks at intervals, so that `wait` and `pause`, which are called for every read of the stream, only assign
    a number.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def silent(self) -> float | None:
        """Seconds since the last read; None while received bytes are processed."""
        return None if self._since is None else self._loop.time() - self._since

    def wait(self) -> None:
        self._since = self._loop.time()

    def pause(self) -> None:
        self._since = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.wait()
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            message = f"The provider sent nothing for {self._seconds:g} s."
            raise TransientError("stall_timeout", message) from None

    def _check(self) -> None:
        now = self._loop.time()
        if self._since is not None and now - self._since >= self._seconds:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_later(self._seconds / 4, self._check)

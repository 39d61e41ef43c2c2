"""How often, and how long apart, a model call is tried again."""

import random
from dataclasses import dataclass

from app.domain.errors import PermanentError, TransientError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`base` doubles up to `longest`, with jitter; a provider's own word counts up to `max_retry_after`. Seconds."""

    most: int = 5
    base: float = 0.5
    longest: float = 8.0
    max_retry_after: float = 60.0


class Retries:
    """The retries of one turn since its last success."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._spent = 0

    def reset(self) -> None:
        self._spent = 0

    def delay(self, error: TransientError, *, charged: bool) -> float:
        """Seconds to wait before the next try. Raises PermanentError when there shall be none.

        A failure after the first delta is budgeted elsewhere (`recoveries`, in the rows): it is not charged here.
        """
        if charged and self._spent >= self._policy.most:
            raise PermanentError(error.type, error.message, request_id=error.request_id)
        wanted = error.retry_after
        if wanted is not None and wanted > self._policy.max_retry_after:
            message = f"{error.message} (the provider asks to wait {wanted:g} s)"
            raise PermanentError(error.type, message, request_id=error.request_id)
        self._spent += charged
        backoff = min(self._policy.longest, self._policy.base * 2.0 ** max(0, self._spent - 1))
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311, no secret depends on it
        return jittered if wanted is None else max(wanted, jittered * 0.1)

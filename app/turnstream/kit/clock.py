"""The time of the database: the clocks of machines differ, so rows are written and aged by the clock of Postgres."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, time


class DatabaseClock:
    """The time of Postgres: its last answer, carried on by the monotonic clock. Before the first answer it
    is the time of this machine.
    """

    def __init__(self) -> None:
        self._ahead = time() - monotonic()  # of the monotonic clock, in seconds
        self._steps: Sequence[tuple[datetime, datetime]] = ()

    @property
    def ahead(self) -> float:
        """Seconds by which it is ahead of the monotonic clock. More than before: the clock of Postgres was set forward,
        or this machine was suspended, when its monotonic clock stops.
        """
        return self._ahead

    def seconds(self) -> float:
        """Since 1970."""
        return monotonic() + self._ahead

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    def learn(self, read: datetime, asked: float, answered: float) -> None:
        """Postgres has `read` its clock between two times of the monotonic clock. An estimate that agrees with that
        stays, so a slow answer does not move it.
        """
        at = read.timestamp()
        self._ahead = min(max(self._ahead, at - answered), at - asked)

    def learn_steps(self, steps: Sequence[tuple[datetime, datetime]]) -> None:
        """Postgres has shown these periods twice, because its clock was set back, the earliest first."""
        self._steps = steps

    def in_order(self, moment: datetime) -> datetime:
        """The last time up to `moment` that Postgres has shown once only: no later write has an earlier time."""
        for began, until in reversed(self._steps):
            if began < moment < until:
                moment = began
        return moment


# One for the process: so is its machine's clock, whose error this makes good.
CLOCK = DatabaseClock()

"""The time of the database. The clocks of machines differ, so the times in rows come from the clock of Postgres."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, time


class DatabaseClock:
    """An estimate of the time of Postgres: the last time that Postgres returned, advanced by the monotonic clock.
    Before the first answer, it is the time of this machine.
    """

    def __init__(self) -> None:
        self._ahead = time() - monotonic()  # seconds by which Postgres is ahead of the monotonic clock
        self._steps: Sequence[tuple[datetime, datetime]] = ()

    @property
    def ahead(self) -> float:
        """The seconds by which this clock is ahead of the monotonic clock. An increase means that the clock of Postgres
        was set forward, or that this machine was suspended, because its monotonic clock then stops.
        """
        return self._ahead

    def seconds(self) -> float:
        """Returns the seconds since 1970."""
        return monotonic() + self._ahead

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    def learn(self, read: datetime, asked: float, answered: float) -> None:
        """Adjusts the estimate to the time `read`, which Postgres has shown between two times of the monotonic clock.
        An estimate that agrees with this reading stays, so a slow answer does not change the estimate.
        """
        at = read.timestamp()
        self._ahead = min(max(self._ahead, at - answered), at - asked)

    def learn_steps(self, steps: Sequence[tuple[datetime, datetime]]) -> None:
        """Stores the periods that Postgres has shown twice because its clock was set back, the earliest first."""
        self._steps = steps

    def in_order(self, moment: datetime) -> datetime:
        """Returns the last time up to `moment` that Postgres has shown only once: no later write is earlier."""
        for began, until in reversed(self._steps):
            if began < moment < until:
                moment = began
        return moment


# One clock for the process, because all parts of the process are on the machine whose clock this corrects.
CLOCK = DatabaseClock()

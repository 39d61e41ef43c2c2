"""Rules of schedules: they compute ticks from a cron expression in a time zone, or from an interval.

Ticks are instants in UTC. A cron expression is evaluated in its time zone. When clocks go forward, a tick in the
missing hour moves to the end of that hour; when they go back, a tick at a fixed hour happens once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from turnstream.domain.errors import RequestRefused

# Most ticks of one schedule in a transaction.
PORTION = 50
MOST_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """Either `cron` or `every` is set; `every` is in seconds."""

    cron: str | None
    every: float | None
    zone: str

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yields the ticks after the instant `after`, at which the first interval starts. Raises RequestRefused."""
        if self.every is not None:
            step, tick = timedelta(seconds=self.every), after
            while True:
                tick += step
                yield tick
        for local in _cron(self.cron or "", after.astimezone(zone_of(self.zone))):
            tick = local.astimezone(UTC)
            if tick > after:
                yield tick

    def first(self, after: datetime) -> datetime:
        """Returns the first tick after an instant. Raises RequestRefused if the rule has no tick."""
        tick = next(self.ticks(after), None)
        if tick is None:
            raise RequestRefused("`cron` must match a time within the next 50 years.", field="cron")
        return tick

    def last(self, tick: datetime, until: datetime) -> datetime:
        """Returns the last tick at or before `until`, but at least `tick`, without computing the ticks in between."""
        if self.every is not None:
            step = timedelta(seconds=self.every)
            return tick + max(0, (until - tick) // step) * step
        after = (until + timedelta(seconds=1)).astimezone(zone_of(self.zone))
        for local in _cron(self.cron or "", after, reverse=True):
            if (found := local.astimezone(UTC)) <= until:
                return max(tick, found)
        return tick


@dataclass(frozen=True, slots=True)
class Due:
    """The due ticks of a schedule: `run` are the ticks to run, `missed` counts the ticks that are too late, and `next`
    is the tick after all these.
    """

    run: tuple[datetime, ...]
    missed: int
    last_missed: datetime | None
    next: datetime


def due_at(rule: Rule, tick: datetime, now: datetime, grace: float) -> Due:
    """Returns the due ticks from `tick` up to `now`, at most `PORTION` of them to run. A tick is missed if it is more
    than `grace` seconds late. Missed ticks are counted up to `MOST_COUNTED`.
    """
    too_late, missed, last_missed = now - timedelta(seconds=grace), 0, None
    if tick < too_late:
        last_missed = rule.last(tick, too_late)
        missed = sum(1 for _ in takewhile(lambda each: each <= last_missed, islice(rule.ticks(tick), MOST_COUNTED))) + 1
        tick = rule.first(last_missed)
    run: list[datetime] = []
    following = rule.ticks(tick)
    while tick <= now and len(run) < PORTION:
        run.append(tick)
        tick = next(following)
    return Due(tuple(run), missed, last_missed, tick)


def shortest(rule: Rule, after: datetime) -> float:
    """Returns the shortest time between the next ticks, in seconds. Raises RequestRefused."""
    if rule.every is not None:
        return rule.every
    pause, before = float("inf"), rule.first(after)
    for tick, _ in zip(rule.ticks(before), range(PORTION), strict=False):
        pause, before = min(pause, (tick - before).total_seconds()), tick
    return pause


def zone_of(name: str) -> ZoneInfo:
    """Returns the time zone with this name. Raises RequestRefused."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        detail = "`zone` must be a time zone of the IANA database, such as Europe/Berlin."
        raise RequestRefused(detail, field="zone") from None


def _cron(expression: str, after: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415, an extra
    except ImportError:
        detail = "`cron` must be left out: this server lacks a package (`pip install 'turnstream[schedules]'`)."
        raise RequestRefused(detail, field="cron") from None
    try:
        return iter(CronSim(expression, after, reverse=reverse))
    except CronSimError as error:
        detail = f"`cron` must have five fields, such as `30 7 * * 1-5` ({str(error) or 'it cannot be read'})."
        raise RequestRefused(detail, field="cron") from None

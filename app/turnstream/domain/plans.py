"""Plans: the limits of owners, and the choice of an owner's plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Final

from turnstream.domain.limits import ReachedLimit, figure

_SOON = 5  # seconds after which a reservation may have been released
PERIODS: Final = ("minute", "day", "month")
# The measures, and the words that name them in sentences. `requests` ask for answers or steer running turns, `writes`
# change other rows, `calls` run tools. `tokens` and `cost` measure model calls.
MEASURES: Final[Mapping[str, str]] = {
    "requests": "requests", "writes": "writes", "calls": "tool calls", "tokens": "tokens", "cost": "in cost",
}  # fmt: skip
SPENT: Final = ("tokens", "cost")  # known only after a model call, so an amount is reserved before the call
COUNTED: Final = MEASURES.keys() - set(SPENT)
# Limits on amounts that exist at the same time.
KEPT: Final = ("running_turns", "queued_turns", "streams", "uploads", "upload_bytes", "documents", "document_bytes")
RATES: Final = tuple(f"{measure}_per_{period}" for measure in MEASURES for period in PERIODS)


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of an owner. `rates` maps names (`tokens_per_day`) to limits, with periods in UTC. `upload_bytes` and
    `document_bytes` limit the bytes of all stored files and documents. A missing member means no limit.
    """

    name: str
    rates: Mapping[str, float] = field(default_factory=dict)
    running_turns: int | None = None
    queued_turns: int | None = None
    streams: int | None = None
    uploads: int | None = None
    upload_bytes: int | None = None
    documents: int | None = None
    document_bytes: int | None = None

    def __post_init__(self) -> None:
        if unknown := self.rates.keys() - set(RATES):
            raise ValueError(f"a plan has no rate {min(unknown)!r}; the rates are {', '.join(RATES)}")

    def has(self, *measures: str) -> bool:
        """Returns True if the plan has a rate for one of the measures."""
        return any(name.partition("_per_")[0] in measures for name in self.rates)


@dataclass(frozen=True, slots=True)
class Plans:
    """Chooses the plan of an owner: first the result of `plan_of`, which is a plan or its name; then the plan that the
    credentials name; then the plan in `owners`; then the `default`.
    """

    default: Plan = Plan("default")
    named: Mapping[str, Plan] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    plan_of: Callable[[str], Plan | str | None] | None = None

    @property
    def vary(self) -> bool:
        """True if owners may have different plans."""
        return bool(self.named) or self.plan_of is not None

    def of(self, owner: str, name: str | None = None) -> Plan:
        """Returns the plan of an owner. `name` is the plan that the credentials name. An unknown name results in the
        lowest limits of all plans, so that a misspelt name does not lift limits.
        """
        chosen = None if self.plan_of is None else self.plan_of(owner)
        if isinstance(chosen, Plan):
            return chosen
        asked = chosen or name or self.owners.get(owner)
        if asked is None:
            return self.default
        return self.named.get(asked) or self._least()

    def _least(self) -> Plan:
        """Returns a plan in which each limit is the lowest limit of all plans."""
        plans = (self.default, *self.named.values())
        limits = {name: [getattr(plan, name) for plan in plans] for name in KEPT}
        kept = {name: min((each for each in found if each is not None), default=None) for name, found in limits.items()}
        rates = {name: min(plan.rates.get(name, inf) for plan in plans) for plan in plans for name in plan.rates}
        return Plan("least", rates, **kept)


def reached_rate(plan: Plan, used: Mapping[str, float], adding: Mapping[str, float]) -> ReachedLimit | None:
    """Returns the first rate of the plan that the added amounts would exceed. Tokens and cost are known only after a
    call, so the call may begin while any amount remains.
    """
    for name, limit in plan.rates.items():
        measure = name.partition("_per_")[0]
        step = adding.get(measure)
        if step is None:
            continue
        least = step if measure in COUNTED else 0
        if used[name] >= limit or used[name] + least > limit:
            return ReachedLimit(name, limit, used[name])
    return None


def seconds_to_next(period: str, now: datetime) -> int:
    """Returns the seconds until the next period begins, at least one."""
    match period:
        case "minute":
            then = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        case "day":
            then = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        case "month":
            first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            then = (first + timedelta(days=32)).replace(day=1)
        case _:
            raise ValueError(f"the period {period} has no end")
    return int((then - now).total_seconds()) + 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal because a rate is exhausted. `at` is the time of the database. `passing`: reservations fill the rate,
    and may be released before the end of the period.
    """

    reached: ReachedLimit
    at: datetime
    passing: bool

    @property
    def retry_after(self) -> int:
        """Seconds after which a retry may succeed."""
        return _SOON if self.passing else seconds_to_next(self.reached.name.rpartition("_")[2], self.at)


def rate_sentence(reached: ReachedLimit) -> str:
    measure, _, period = reached.name.partition("_per_")
    used = f"{figure(reached.used)} {MEASURES[measure]} of this {period}"
    return f"The owner has used {used}, and the limit `{reached.name}` of the plan is {figure(reached.limit)}."

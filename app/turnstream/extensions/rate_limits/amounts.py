"""Amounts of limited resources, and the headers in which providers report them. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

_MINUTE = 60.0
_WINDOWS = (1.0, _MINUTE, 3600.0, 86_400.0)


class Amounts(NamedTuple):
    """An amount of each limited resource. `tokens` are input and output together, as some providers count them."""

    requests: float = 0.0
    input: float = 0.0
    output: float = 0.0
    tokens: float = 0.0

    def plus(self, other: "Amounts", times: float = 1.0) -> "Amounts":
        return Amounts(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    def least(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(min, self, other))

    def most(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(max, self, other))

    def covers(self, need: "Amounts") -> bool:
        return all(mine >= its - 1e-9 for mine, its in zip(self, need, strict=True))


NONE = Amounts()
UNLIMITED = Amounts(*[math.inf] * 4)


def need_of(input: float, output: float) -> Amounts:
    """Returns the amounts that a call with these tokens needs."""
    return Amounts(1, input, output, input + output)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Token buckets: each holds at most `capacity` and gains `rate` per second. For a resource without a limit, both
    are infinite.
    """

    capacity: Amounts = UNLIMITED
    rate: Amounts = UNLIMITED

    @classmethod
    def per_minute(
        cls,
        requests: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        tokens: float | None = None,
    ) -> Self:
        figures = (requests, input_tokens, output_tokens, tokens)
        capacity = Amounts(*(math.inf if each is None else float(each) for each in figures))
        return cls(capacity, Amounts(*(each / _MINUTE for each in capacity)))

    @property
    def limited(self) -> bool:
        return self.capacity != UNLIMITED

    @property
    def limits_tokens(self) -> bool:
        return self.capacity[1:] != UNLIMITED[1:]

    def stricter(self, other: "RateLimits") -> "RateLimits":
        """Returns the lower limit of each resource."""
        return RateLimits(self.capacity.least(other.capacity), self.rate.least(other.rate))


@dataclass(frozen=True, slots=True)
class ReportedLimits:
    """The limits and the remaining amounts that the headers of a response report. For a resource without headers, both
    are infinite.
    """

    limits: RateLimits
    remaining: Amounts


_ANTHROPIC = ("requests", "input-tokens", "output-tokens", "tokens")
# A gateway that reports in Anthropic's form also reports the stricter of its token limits as `tokens`.
_OPENAI = ("requests", "input-tokens", "output-tokens", "tokens")


def report_of(headers: Mapping[str, str]) -> ReportedLimits | None:
    """Reads `anthropic-ratelimit-*` and `x-ratelimit-*`. Returns None if the response has no such headers."""
    limits, rates, remaining = list(UNLIMITED), list(UNLIMITED), list(UNLIMITED)
    for place, (theirs, ours) in enumerate(zip(_ANTHROPIC, _OPENAI, strict=True)):
        if f"anthropic-ratelimit-{theirs}-limit" not in headers and f"x-ratelimit-limit-{ours}" not in headers:
            continue
        limit = _number(headers.get(f"anthropic-ratelimit-{theirs}-limit"))
        left = _number(headers.get(f"anthropic-ratelimit-{theirs}-remaining"))
        window = _MINUTE
        if theirs == "tokens" and limits[1:3] != [math.inf, math.inf]:
            continue  # `tokens` repeats the stricter of the limits that were read above
        if limit is None:
            limit = _number(headers.get(f"x-ratelimit-limit-{ours}"))
            left = _number(headers.get(f"x-ratelimit-remaining-{ours}"))
            window = _window(limit, left, headers.get(f"x-ratelimit-reset-{ours}"))
        if limit is None or limit <= 0:
            continue
        limits[place], rates[place] = limit, limit / window
        if left is not None:
            remaining[place] = left
    if limits == list(UNLIMITED):
        return None
    return ReportedLimits(RateLimits(Amounts(*limits), Amounts(*rates)), Amounts(*remaining))


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else math.nan
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _window(limit: float | None, left: float | None, reset: str | None) -> float:
    """Computes the window of a limit from the time until its used part is restored, because some servers limit requests
    per day.
    """
    seconds = _duration(reset)
    if not limit or left is None or seconds is None or left >= limit or seconds <= 0:
        return _MINUTE
    whole = seconds * limit / (limit - left)
    return min(_WINDOWS, key=lambda window: abs(math.log(window / whole)))


def _duration(text: str | None) -> float | None:
    """Returns the seconds of `1h2m3.5s`, `120ms` or a plain number; None for other values, such as a date."""
    if not text:
        return None
    if (plain := _number(text)) is not None:
        return plain
    seconds, figure, rest = 0.0, "", text
    units = {"ms": 0.001, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        figure, rest = rest[:digits], rest[digits:]
        unit = next((each for each in units if rest.startswith(each)), None)
        number = _number(figure)
        if unit is None or number is None:
            return None
        seconds += number * units[unit]
        rest = rest[len(unit) :]
    return seconds

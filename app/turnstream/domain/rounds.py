"""Rounds, each of which is one model call with the results of its tool calls; and the sums of usage and of cost."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeGuard

# The member of a round's `data` that refers to an answer that the provider keeps; null once the answer has arrived.
RETAINED = "retained"

_MILLION = 1_000_000
_FIGURES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_MOST = 2**53  # limits one figure, because columns of the database store sums of providers' figures


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in the currency that the operator chose."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost_of(self, usage: Mapping[str, Any]) -> float:
        """Returns the cost of a round's usage."""
        tokens = billed_tokens(usage)
        paid = (
            (self.input, tokens.input),
            (self.input if self.cache_read is None else self.cache_read, tokens.cache_read),
            (self.input if self.cache_write is None else self.cache_write, tokens.cache_write),
            (self.output, tokens.output),
        )
        return float(sum((Decimal(str(price)) * count for price, count in paid), Decimal()) / _MILLION)


@dataclass(frozen=True, slots=True)
class BilledTokens:
    """The tokens of model calls by price category. `input` counts input tokens outside of the cache."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.input + self.cache_read + self.cache_write + self.output


def billed_tokens(usage: Mapping[str, Any]) -> BilledTokens:
    """Returns the billed tokens of a round. A provider reports the tokens of its own summaries only in `iterations`."""
    iterations = usage.get("iterations") or ()
    figures = (usage, *(each for each in iterations if each.get("type") == "compaction"))
    return BilledTokens(*(sum(_count(each.get(name)) for each in figures) for name in _FIGURES))


def _count(figure: object) -> int:
    return max(0, min(figure, _MOST)) if isinstance(figure, int) else 0


@dataclass(frozen=True, slots=True)
class Round:
    """One model call. `usage` is the provider's object, with the latest figures. `data` is JSON text: other members
    that the provider reported and may need back (container, stop_details). Several attempts may have begun a round with
    the same number; at most one of these rounds is sealed, by the attempt `sealed_by`. `model` is the called model, if
    known. `estimated_tokens` is the output of an interrupted reply, estimated from its length, because providers report
    the true figure at the end of a reply. `cost` uses the prices at the time when the round was sealed or deleted; None
    if the prices are unknown.
    """

    number: int
    attempt: int
    messages: int = 0
    model: str | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None
    data: str | None = None
    sealed_by: int | None = None
    started_at: datetime | None = None
    first_delta_at: datetime | None = None
    sealed_at: datetime | None = None
    estimated_tokens: int | None = None
    cost: float | None = None

    @property
    def sealed(self) -> bool:
        return self.sealed_by is not None

    @property
    def voided(self) -> bool:
        """True for a call whose blocks were deleted. The usage of the call still counts."""
        return self.stop_reason == "voided"

    @property
    def retained(self) -> Mapping[str, Any] | None:
        """The provider's reference to its answer, if the provider keeps and completes the answer without a reader."""
        data = json.loads(self.data) if self.data and f'"{RETAINED}"' in self.data else {}
        found = data.get(RETAINED)
        return found if isinstance(found, Mapping) else None

    @property
    def is_estimated(self) -> bool:
        """True if the received output is longer than the reported output."""
        return (self.estimated_tokens or 0) > (self.usage.get("output_tokens") or 0)

    @property
    def spent(self) -> Mapping[str, Any]:
        """The usage. A higher estimate replaces the output tokens, because providers bill interrupted replies too."""
        return {**self.usage, "output_tokens": self.estimated_tokens} if self.is_estimated else self.usage


def merge_usage(known: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the updated usage of one message: later figures replace earlier figures."""
    return {**known, **{key: value for key, value in news.items() if value is not None}}


def add_usage(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Adds numbers and joins lists of two usages, at every depth. Other values of `right` replace values of `left`."""
    total = dict(left)
    for key, value in right.items():
        known = total.get(key)
        if isinstance(value, Mapping):
            total[key] = add_usage(known if isinstance(known, Mapping) else {}, value)
        elif _is_count(value) and _is_count(known):
            whole = isinstance(known, int) and isinstance(value, int)
            total[key] = known + value if whole else exact_sum((known, value))
        elif isinstance(value, list) and isinstance(known, list):
            total[key] = [*known, *value]
        elif value is not None:
            total[key] = value
    return total


def exact_sum(values: Iterable[float]) -> float:
    """Adds the values as decimal numbers, so that the sum of 0.1 and 0.2 is exactly 0.3."""
    return float(sum((Decimal(str(value)) for value in values), Decimal()))


def _is_count(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)

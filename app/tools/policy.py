"""How a tool is run. Every use of a policy is noted on the result, and counted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from app.domain.turns import ToolSpec

# `always` and `never`, or a function of the input (the parsed JSON object) that says whether a person must allow it.
Approval = Literal["never", "always"] | Callable[[Mapping[str, Any]], bool]
ResultForm = Literal["json", "text"]


@dataclass(frozen=True, slots=True)
class Breaker:
    """After `failures` calls in a row that failed or ran out of time, the tool is left alone for `pause` seconds; then
    one call tries it. An error that the tool means to tell is no such failure.
    """

    failures: int = 5
    pause: float = 30.0

    def __post_init__(self) -> None:
        _at_least_one("failures of a breaker", self.failures)
        _above_zero("pause of a breaker", self.pause)


@dataclass(frozen=True, slots=True)
class Policy:
    """Times are seconds. What concerns a turn is kept over crashes: it is counted from its rows.

    `timeout`: for the whole call, retries included. `concurrency`: calls at once on one replica. `retries`: after it
    raised what it did not mean to tell, or was unavailable, if it is read-only or safe to retry. `memo`: an identical
    call of a read-only tool in one turn is answered from the first. `results`: what is no text is told as JSON, or as
    indented text. `fallback`: the tool that is run with the same input when this one has failed. `approval_expiry`: how
    long a person may take. Raises ValueError for what makes no sense.
    """

    timeout: float = 30.0
    concurrency: int | None = None
    calls_per_turn: int | None = None
    max_result_chars: int | None = None
    retries: int = 1
    memo: bool = False
    results: ResultForm = "json"
    fallback: str | None = None
    breaker: Breaker | None = field(default_factory=Breaker)
    approval: Approval = "never"
    approval_expiry: float | None = None

    def __post_init__(self) -> None:
        _above_zero("timeout", self.timeout)
        _at_least_one("concurrency", self.concurrency)
        _at_least_one("calls_per_turn", self.calls_per_turn)
        _at_least_one("max_result_chars", self.max_result_chars)
        if self.retries < 0:
            raise ValueError(f"retries cannot be {self.retries}: 0 is none")
        if self.results not in {"json", "text"}:
            raise ValueError(f'results are told as "json" or "text", not as {self.results!r}')
        if not (self.approval in {"never", "always"} or callable(self.approval)):
            raise ValueError(f'approval is "never", "always" or a function of the input, not {self.approval!r}')
        if self.approval_expiry is not None:
            _above_zero("approval_expiry", self.approval_expiry)
            if self.approval == "never":
                raise ValueError("approval_expiry says how long an approval may take, but none is asked for")


class PolicyOptions(TypedDict, total=False):
    """The fields of Policy, each of which may be left out."""

    timeout: float
    concurrency: int | None
    calls_per_turn: int | None
    max_result_chars: int | None
    retries: int
    memo: bool
    results: ResultForm
    fallback: str | None
    breaker: Breaker | None
    approval: Approval
    approval_expiry: float | None


def policy_of(spec: ToolSpec, options: PolicyOptions) -> Policy:
    """Raises ValueError where an option was given that this tool cannot have."""
    if options.get("retries") and not repeatable(spec):
        raise ValueError(f"{spec.name} cannot have retries: say that it is read_only or retry_safe, if it is")
    if options.get("memo") and not spec.read_only:
        raise ValueError(f"{spec.name} cannot have a memo: a call of a tool that is not read_only is never left out")
    if options.get("fallback") == spec.name:
        raise ValueError(f"{spec.name} cannot be its own fallback")
    try:
        return Policy(**options)
    except ValueError as error:
        raise ValueError(f"{spec.name}: {error}") from None


def repeatable(spec: ToolSpec) -> bool:
    return spec.read_only or spec.retry_safe


def _above_zero(what: str, seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ValueError(f"the {what} is a number of seconds above 0, not {seconds}")


def _at_least_one(what: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise ValueError(f"{what} cannot be {number}: it is at least 1, and None is no limit")

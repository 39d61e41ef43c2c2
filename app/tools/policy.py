"""How a tool is run. Every use of a policy is noted on the result, and counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# `always` and `never`, or a function of the input (the parsed JSON object) that says whether a person must allow it.
Approval = Literal["never", "always"] | Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Breaker:
    """After `failures` calls in a row that failed or ran out of time, the tool is left alone for `pause` seconds; then
    one call tries it.
    """

    failures: int = 5
    pause: float = 30.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Times are seconds. What concerns a turn is kept over crashes: it is counted from its rows.

    `concurrency`: calls at once on one replica. `retries`: after it raised what it did not mean to tell, if it is
    read-only or safe to retry. `memo`: an identical call of a read-only tool in one turn is answered from the first.
    `results`: what is no text is told as JSON, or as indented text. `fallback`: the tool that is run with the same
    input when this one has failed. `approval_expiry`: how long a person may take.
    """

    timeout: float = 30.0
    concurrency: int | None = None
    calls_per_turn: int | None = None
    max_result_chars: int | None = None
    retries: int = 1
    memo: bool = True
    results: Literal["json", "text"] = "json"
    fallback: str | None = None
    breaker: Breaker | None = field(default_factory=Breaker)
    approval: Approval = "never"
    approval_expiry: float | None = None

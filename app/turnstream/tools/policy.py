"""The policy of a tool: limits, retries, fallback and approval of its calls. Also counts the policies that acted."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from turnstream.domain.turns import ToolSpec
from turnstream.telemetry import TOOL_POLICIES

# Whether a person must allow a call. A function decides by the input (the parsed JSON object).
Approval = Literal["never", "always"] | Callable[[Mapping[str, Any]], bool]
ResultForm = Literal["json", "text"]
# The scope of one approval: this call, or all later calls of the tool in the chat.
ApprovalScope = Literal["call", "chat"]
_APPROVER = re.compile(r"(role|person):\S(.*\S)?")
# The fields of Policy that a tool sets, by name. Policy checks the names and the values.
PolicyOptions = Mapping[str, Any]

# The keys of a result's notes about policies that acted on it (docs/tool-policies.md). The engine and an extension
# write the last six.
POLICY_NOTES = frozenset(
    {
        "retries", "timeout", "breaker", "fallback", "cut", "data_left_out", "waited", "summarised",
        "summary_failed", "cached", "memo", "calls_per_turn", "approval",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Breaker:
    """Rejects calls for `pause` seconds after `failures` failures in a row (not ToolErrors); then tries one call."""

    failures: int = 5
    pause: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"`breaker.failures` must be at least 1, not {self.failures}")
        _check_seconds("breaker.pause", self.pause)


@dataclass(frozen=True, slots=True)
class Fallback:
    """The tool that runs after a failure of another tool, and its input.

    `input` maps each member of the new input to a member of the failed call's input, or is a function of that input;
    None passes on the same input. `add` has additional members with fixed values.
    """

    tool: str
    input: Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    add: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes_input(self) -> bool:
        return self.input is not None or bool(self.add)


@dataclass(frozen=True, slots=True)
class Summarise:
    """`model` summarises results of more than `above` characters. None means the model of the server's settings."""

    above: int = 8000
    model: str | None = None

    def __post_init__(self) -> None:
        if self.above < 1:
            raise ValueError(f"`summarise.above` must be at least 1, not {self.above}")


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for calls of one tool. The fields are also the options of `@tool`, and of the tables of a tools file.

    Raises ValueError for an invalid value.
    """

    timeout: float | None = None  # seconds for the whole call with its retries; None: 30, or 3600 in the background
    background: bool = False  # the call runs apart from its turn; the waiting turn uses no memory
    reports: bool = False  # for a background tool: the turn does not wait; a report delivers the outcome
    concurrency: int | None = None  # maximum number of calls at once on one replica
    calls_per_turn: int | None = None  # maximum calls, counted from rows, so that a crash does not reset the count
    max_result_chars: int | None = None  # None means the limit of the server
    summarise: Summarise | None = None  # lets a smaller model summarise a long result
    retries: int = 1  # after a temporary failure; only for tools that are read-only or safe to retry
    memo: bool = False  # an identical call in the turn gets the first result; only for read-only tools
    cache_seconds: float | None = None  # how long all turns of the owner reuse a result; only for read-only tools
    results: ResultForm = "json"  # the form in which the model gets a result that is not text
    fallback: str | Fallback | None = None  # runs after a failure of this tool; a str passes on the same input
    breaker: Breaker | None = field(default_factory=Breaker)
    approval: Approval = "never"
    approval_expiry: float | None = None  # seconds that a person has to decide
    approval_scope: ApprovalScope = "chat"  # the widest scope that an approval may have
    approvers: Sequence[str] = ()  # the only persons who may answer, as `role:NAME` or `person:OWNER`; empty: the owner

    @property
    def seconds(self) -> float:
        """The time limit of a call, in seconds."""
        return self.timeout if self.timeout is not None else 3600.0 if self.background else 30.0

    @property
    def stand_in(self) -> Fallback | None:
        return Fallback(self.fallback) if isinstance(self.fallback, str) else self.fallback

    def __post_init__(self) -> None:
        _check_seconds("timeout", self.seconds)
        if self.reports and not self.background:
            raise ValueError("`reports` must be left out for a tool without `background`: its turn waits for each call")
        _check_count("concurrency", self.concurrency)
        _check_count("calls_per_turn", self.calls_per_turn)
        _check_count("max_result_chars", self.max_result_chars)
        if self.retries < 0:
            raise ValueError(f"`retries` must be 0 (none) or more, not {self.retries}")
        if self.cache_seconds is not None:
            _check_seconds("cache_seconds", self.cache_seconds)
            if self.background:
                raise ValueError("`cache_seconds` must be left out for a tool with `background`")
        if self.results not in {"json", "text"}:
            raise ValueError(f'`results` must be "json" or "text", not {self.results!r}')
        if not (self.approval in {"never", "always"} or callable(self.approval)):
            raise ValueError(f'`approval` must be "never", "always" or a function of the input, not {self.approval!r}')
        if self.approval_expiry is not None:
            _check_seconds("approval_expiry", self.approval_expiry)
            if self.approval == "never":
                raise ValueError('`approval_expiry` needs an `approval` that is not "never": no person is asked')
        if self.approval_scope not in {"call", "chat"}:
            raise ValueError(f'`approval_scope` must be "call" or "chat", not {self.approval_scope!r}')
        if isinstance(self.approvers, str):
            raise ValueError(f"`approvers` must be a list, not {self.approvers!r}")
        object.__setattr__(self, "approvers", tuple(self.approvers))
        for approver in self.approvers:
            if not _APPROVER.fullmatch(approver):
                raise ValueError(f"`approvers` must have the form `role:NAME` or `person:OWNER`, not {approver!r}")


def policy_of(spec: ToolSpec, options: PolicyOptions) -> Policy:
    """Makes the policy of a tool. Raises ValueError for an invalid option, or an option that does not fit the tool."""
    check_for(spec, options)
    try:
        return Policy(**options)
    except ValueError as error:
        raise ValueError(f"{spec.name}: {error}") from None


def check_for(spec: ToolSpec, options: PolicyOptions) -> None:
    """Raises ValueError for an option that does not fit the tool."""
    if options.get("retries") and not repeatable(spec):
        raise ValueError(f"{spec.name} cannot have `retries`: declare it `read_only` or `retry_safe`, if it is")
    if options.get("memo") and not spec.read_only:
        raise ValueError(f"{spec.name} cannot have a `memo`: declare it `read_only`, if it is")
    if options.get("cache_seconds") and not spec.read_only:
        raise ValueError(f"{spec.name} cannot have `cache_seconds`: declare it `read_only`, if it is")
    fallback = options.get("fallback")
    if spec.name == (fallback.tool if isinstance(fallback, Fallback) else fallback):
        raise ValueError(f"{spec.name} cannot be its own `fallback`: name another tool")


def repeatable(spec: ToolSpec) -> bool:
    return spec.read_only or spec.retry_safe


def count_policies(tool: str, notes: Mapping[str, Any]) -> None:
    """Counts the policies in a result's notes. `tool` is the label of the metric."""
    for policy in POLICY_NOTES & notes.keys():
        TOOL_POLICIES.labels(tool, policy).inc()
    match notes.get("fallback"):
        case {"tool": str(stand_in), "notes": dict(its_notes)}:
            count_policies(stand_in, its_notes)
        case _:
            pass


def _check_seconds(option: str, seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ValueError(f"`{option}` must be a number of seconds above 0, not {seconds}")


def _check_count(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise ValueError(f"`{option}` must be at least 1, or None for no limit, not {number}")

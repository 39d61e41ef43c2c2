"""Turns, what they were asked to do, and the one table of their states."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from app.domain.asks import Ask, Steer
from app.domain.blocks import Block
from app.domain.errors import IllegalTransition
from app.domain.rounds import Round

Role = Literal["user", "assistant"]
Status = Literal["queued", "running", "waiting", "complete", "cancelled", "error"]
RecoveryPolicy = Literal["retry", "continue"]
RoundLimitPolicy = Literal["answer", "stop"]
Compaction = Literal["own", "provider"]
ToolRole = Literal["output", "submit"]

# status -> the statuses it may become. An ended turn has no way out. tests/integration/test_states.py runs every
# statement that writes a status against this table.
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"queued", "waiting", "complete", "cancelled", "error"}),
    "waiting": frozenset({"queued"}),
    "complete": frozenset(),
    "cancelled": frozenset(),
    "error": frozenset(),
}
ENDED: frozenset[Status] = frozenset(status for status, ways_out in TRANSITIONS.items() if not ways_out)
OPEN: frozenset[Status] = frozenset(TRANSITIONS) - ENDED


def check_transition(now: Status, then: Status) -> None:
    """Raises IllegalTransition unless the table allows `now` → `then`."""
    if then not in TRANSITIONS[now]:
        raise IllegalTransition(now, then)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """Where a tool is that was declared with the request. `headers` may hold secrets: nobody is shown them."""

    url: str
    timeout: float = 30.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it, frozen into the turn. `input_schema` is JSON text. A tool that is neither
    `read_only` nor `retry_safe` is never run twice for one call. A `client` tool is run by whoever watches the turn;
    one with `http` was declared with the request; by one with a `role` a structured turn puts out what it was asked
    for; any other is known to the server by its name.
    """

    name: str
    description: str
    input_schema: str
    read_only: bool = False
    retry_safe: bool = False
    client: bool = False
    http: HttpCall | None = None
    role: ToolRole | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """`context_window` is in tokens; at `compact_at` of it the conversation is made shorter: by us, or where the
    `provider` shall, by those `provider_edits` that it offers for the model.
    """

    max_rounds: int = 5
    on_max_rounds: RoundLimitPolicy = "answer"
    max_failed_rounds: int = 3
    continue_after_tools: bool = True
    recovery: RecoveryPolicy = "retry"
    max_recoveries: int = 3
    context_window: int | None = None
    compact_at: float = 0.8
    compaction: Compaction = "own"
    provider_edits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a structured turn puts out: JSON by `schema` (JSON text), judged by a `validator` and refined with a
    `handler` that the program has registered. An attempt ends with an output, or after `max_iterations` model calls.
    `native`: the model is held to the schema by its provider, and puts out as text instead of calling a tool.
    """

    schema: str
    validator: str | None = None
    handler: str | None = None
    max_attempts: int = 3
    max_iterations: int = 15
    native: bool = False


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What an assistant turn was asked to do, frozen when it was created so that a retry is the same request.

    `params` are the model parameters as given (max_tokens, thinking, …). `provider_tools` run at the provider: their
    definitions as JSON text, handed on as they are. `record` asks for a recording of its model calls.
    """

    model: str
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    limits: Limits = Limits()
    provider_tools: tuple[str, ...] = ()
    output: OutputSpec | None = None
    record: bool = False


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn ended as `error`: `type` is the provider's or ours, `request_id` the provider's."""

    type: str
    message: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn with its rounds and blocks, as the rows hold it. `steers` are those it has not taken in yet; `arrivals`
    counts how often somebody said something to it while it was open.
    """

    id: UUID
    chat_id: UUID
    parent_id: UUID | None
    role: Role
    status: Status
    attempt: int = 0
    request: TurnRequest | None = None
    cancel_requested: bool = False
    recoveries: int = 0
    arrivals: int = 0
    stop_reason: str | None = None
    error: TurnError | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rounds: tuple[Round, ...] = ()
    blocks: tuple[Block, ...] = ()
    asks: tuple[Ask, ...] = ()
    steers: tuple[Steer, ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in ENDED

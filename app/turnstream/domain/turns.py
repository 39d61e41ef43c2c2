"""Turns, their requests, and the table of their states."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from turnstream.domain.asks import Ask, Steer
from turnstream.domain.blocks import Block, PreliminaryOutput, author_of
from turnstream.domain.errors import IllegalTransition
from turnstream.domain.jobs import Job
from turnstream.domain.rounds import Prices, Round

Role = Literal["user", "assistant"]
Status = Literal["queued", "running", "waiting", "complete", "cancelled", "error"]
RecoveryPolicy = Literal["retry", "continue"]
RoundLimitPolicy = Literal["answer", "stop"]
ProviderFailurePolicy = Literal["assemble", "fail"]
Compaction = Literal["own", "provider"]
EarlierResults = Literal["whole", "short", "none"]
ToolRole = Literal["output", "submit"]

# status -> the allowed next statuses. An ended turn never changes its status. tests/integration/test_states.py checks
# every statement that writes a status against this table.
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
# The minimum distance between the numbers of two attempts (turnstream.storage.runs.attempts).
LEAST_STEP = 64
# The stop reason that readers receive when an open turn is deleted.
DELETED = "deleted"
# The stop reason of an answer that the user cancelled before it began. Later requests omit the answer and its message.
WITHDRAWN = "withdrawn"


def check_transition(now: Status, then: Status) -> None:
    """Raises IllegalTransition unless the table allows `now` → `then`."""
    if then not in TRANSITIONS[now]:
        raise IllegalTransition(now, then)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """The endpoint of a tool that the request declared. `headers` may contain secrets, which responses mask."""

    url: str
    timeout: float = 30.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it, frozen into the turn. `input_schema` is JSON text. The server never runs a call
    twice unless the tool is `read_only` or `retry_safe`. The client runs a `client` tool; if a call has waited for
    `expiry` seconds, the turn is cancelled. A tool with `http` was declared by the request. A tool with a `role`
    receives the output of a structured turn. The server finds every other tool by its name. The model does not see a
    `deferred` tool until a search finds the tool (turnstream.domain.deferred).
    """

    name: str
    description: str
    input_schema: str
    read_only: bool = False
    retry_safe: bool = False
    client: bool = False
    http: HttpCall | None = None
    role: ToolRole | None = None
    expiry: float | None = None
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one turn. `context_window` is in tokens. When a conversation fills the share `compact_at` of the
    window, it is compacted by the server (`own`), or by the `provider`, with those `provider_edits` that the provider
    offers for the model. `earlier_results` is the form that tool results of earlier turns have in requests.

    `max_rounds` may grow to `hard_max_rounds` while rounds make progress. `max_calls` limits tool calls. The budgets
    limit tokens of all categories, cost by `prices` (a mapping from names of models), and seconds since the first
    claim. With `tell_rounds`, requests contain the number of remaining tool rounds.
    """

    max_rounds: int = 5
    on_max_rounds: RoundLimitPolicy = "answer"
    max_failed_rounds: int = 3
    continue_after_tools: bool = True
    recovery: RecoveryPolicy = "continue"
    max_recoveries: int = 3
    on_provider_failure: ProviderFailurePolicy = "assemble"
    context_window: int | None = None
    compact_at: float = 0.8
    compaction: Compaction = "own"
    earlier_results: EarlierResults = "whole"
    provider_edits: tuple[str, ...] = ()
    hard_max_rounds: int | None = None
    max_calls: int | None = None
    budget_tokens: int | None = None
    budget_cost: float | None = None
    budget_seconds: float | None = None
    prices: Mapping[str, Prices] = field(default_factory=dict)
    tell_rounds: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The output of a structured turn: JSON that meets `schema` (JSON text). The program may have registered a
    `validator` that checks outputs, and a `handler` that receives drafts. An attempt ends with an output, or after
    `max_iterations` model calls. `native`: the provider enforces the schema, and the output is text that the model
    writes, not a tool call. `wrapped`: the model writes an object whose `value` is the output, because providers accept
    only the schema of a plain object. The other members name and describe the output tools; None means the default.
    """

    schema: str
    validator: str | None = None
    handler: str | None = None
    max_attempts: int = 3
    max_iterations: int = 15
    native: bool = False
    wrapped: bool = False
    name: str = "output"
    description: str | None = None
    submit_name: str = "submit"
    submit_description: str | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """The parts of a turn's request that an agent fixes if the turn names the agent as its model: a listed `model`
    (None: the default model), a system prompt, names of the server's tools and, if set, the limit of rounds and the
    output. A turn cannot replace these parts. `description` is for people.
    """

    description: str
    system: str
    model: str | None = None
    tools: tuple[str, ...] = ()
    max_rounds: int | None = None
    output: OutputSpec | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The request of an assistant turn, frozen when the turn is created, so that a retry repeats the same request.

    `params` are the model parameters as given (max_tokens, thinking, …). `provider_tools` run at the provider; their
    definitions are JSON text and reach the provider unchanged. `record` asks for a recording of the model calls. `plan`
    is the owner's plan, if the credentials of the request name a plan. `labels` are for the client alone. `trace` is
    the span of the request in the form of the header `traceparent`; None without tracing. `documents` is the path
    prefix of the documents that the turn's tools may read: empty for every document, None for no document. `root_turn`
    is the root of the turn's family, which shares its budgets of tokens and cost. `author` is the member of the chat
    who asked for the turn; None for the owner.
    """

    model: str
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    limits: Limits = Limits()
    provider_tools: tuple[str, ...] = ()
    output: OutputSpec | None = None
    record: bool = False
    plan: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    trace: str | None = None
    documents: str | None = ""
    root_turn: UUID | None = None
    author: str | None = None

    @property
    def defined_tools(self) -> tuple[ToolSpec, ...]:
        """The tools whose definitions model requests contain."""
        return tuple(spec for spec in self.tools if not spec.deferred)


@dataclass(frozen=True, slots=True)
class TurnError:
    """The reason why a turn ended as `error`. `type` is an error's name at the provider or at this server, `request_id`
    the provider's id of the call. `details` are figures as JSON: the spent budget and its amount, or `retry_after`, the
    pause in seconds that the provider asks for.
    """

    type: str
    message: str
    request_id: str | None = None
    details: Mapping[str, Any] | None = None

    @property
    def retry_after(self) -> float | None:
        return self.details.get("retry_after") if self.details else None

    @property
    def wait(self) -> Mapping[str, float]:
        """The member `retry_after` for an error's JSON; empty if the provider does not ask for a pause."""
        return {} if self.retry_after is None else {"retry_after": self.retry_after}


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn with its rounds and blocks, as in the rows. `steers` are the steers that are not yet applied.
    `preliminary` is the latest output of running tools, perhaps a second old. `jobs` are the jobs of the turn's calls
    while the turn is open; after its end, only the jobs that report. `recoveries` counts interruptions without
    progress, `deaths` the process deaths that the turn may have caused. `arrivals` counts the answers and steers that
    reached the open turn, `hook_failures` the failed hooks. If this turn is a copy, `forked_from` is the original.
    `lineage` has the numbers of the turn's attempts, oldest first, and is empty while there is only one attempt.
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
    deaths: int = 0
    arrivals: int = 0
    hook_failures: int = 0
    stop_reason: str | None = None
    error: TurnError | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    forked_from: UUID | None = None
    lineage: tuple[int, ...] = ()
    rounds: tuple[Round, ...] = ()
    blocks: tuple[Block, ...] = ()
    asks: tuple[Ask, ...] = ()
    steers: tuple[Steer, ...] = ()
    preliminary: tuple[PreliminaryOutput, ...] = ()
    jobs: tuple[Job, ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def author(self) -> str | None:
        """The member of the chat who wrote the message, or asked for the answer; None if the owner did."""
        return self.request.author if self.request else author_of(self.blocks)

    @property
    def open_jobs(self) -> tuple[Job, ...]:
        """The jobs for which the turn waits."""
        return tuple(job for job in self.jobs if not job.settled and not job.reports)

    @property
    def waits_for_person(self) -> bool:
        """Whether the turn waits for an answer to an ask, and not only for jobs."""
        return self.status == "waiting" and (not self.open_jobs or any(map(self.waits_for, self.asks)))

    def waits_for(self, ask: Ask) -> bool:
        """Whether the ask is open. An elicitation ends with the run (of the turn or of a job) that asked it."""
        if ask.answer is not None or ask.kind != "elicitation":
            return ask.answer is None
        if not ask.is_of_job:
            return ask.attempt == self.attempt and self.status == "running"
        asking = (ask.round, ask.call_id, ask.attempt)
        return not self.ended and any((*job.key, job.attempt) == asking for job in self.open_jobs)

    @property
    def is_abandoned(self) -> bool:
        """Whether a call to a client program has expired. The program then no longer waits for the turn's answer."""
        programs = {spec.name for spec in self.request.tools if spec.client and spec.expiry} if self.request else ()
        return any(ask.answer and ask.answer.kind == "expired" and ask.name in programs for ask in self.asks)

    def has_had(self, attempt: int) -> bool:
        """Returns whether `attempt` is an earlier or the present attempt of this turn. All numbers up to the first
        stored attempt are accepted, because earlier attempts had consecutive numbers.
        """
        first = self.lineage[0] if self.lineage else self.attempt
        return attempt <= first or attempt in self.lineage

    @property
    def has_run_before(self) -> bool:
        """Whether the turn has had an earlier attempt."""
        return len(self.lineage) > 2 or (self.lineage[0] > 0 if self.lineage else self.attempt > 1)

    def in_attempt(self, attempt: int) -> "Turn":
        return replace(self, attempt=attempt, lineage=(*(self.lineage or (self.attempt,)), attempt))

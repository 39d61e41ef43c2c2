"""Asks: calls that wait for a person. Grants: permissions that outlast a call. Steers: messages to an open turn."""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal
from uuid import UUID

from turnstream.domain.blocks import Block, CallKey

AskKind = Literal["client", "approval", "elicitation", "sign_in"]
# Asks of these kinds have a question, which clients show. For an ask of another kind, clients show the call.
QUESTIONS: Final = frozenset[AskKind]({"elicitation", "sign_in"})
# `result`, `approve` and `deny` come from a person. An ask without an answer expires, or a steer supersedes it.
AnswerKind = Literal["result", "approve", "deny", "expired", "superseded"]


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """The answer to an ask. `text` is the result of a client tool, or the reason of a denial. If the result contains
    files, `layout` describes them (turnstream.domain.results). `client_data` is JSON text that only clients receive.
    `input` is JSON text that replaces the input of the call. `grant` is the stored permission that answered the ask at
    once, without a person. `by` is the person who decided, unless it was the owner.
    """

    kind: AnswerKind
    text: str = ""
    is_error: bool = False
    input: str | None = None
    layout: str | None = None
    client_data: str | None = None
    grant: UUID | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that waits for a person: for the result of a tool that the client runs (`client`), or for permission to
    run a tool here (`approval`). The attempt `attempt` made the ask. `digest` identifies the exact call (`digest_of`).
    `tool_digest` identifies the version of the tool that the person saw, if the chat may remember an approval.

    An `elicitation` is a question that a tool asks the person while its call runs. `question` is its JSON text. Its
    `tool_use_id` is the id of the call, followed by a number (`elicitation_id`). The question is open while the attempt
    that asked it runs. If a job asks, `attempt` is an attempt of the job, and the question is open until the job is
    over or runs again (`Turn.waits_for`).

    A `sign_in` has a question that contains a link. The server of the tool requires a sign-in, so the call was not
    made. After the sign-in, any attempt may make the call.

    Only the principals in `approvers` may answer (`Identity.principals`). Without approvers the owner answers.
    """

    round: int
    tool_use_id: str
    name: str
    kind: AskKind
    digest: str
    attempt: int
    expires_at: datetime | None = None
    answer: AskAnswer | None = None
    tool_digest: str | None = None
    asked_at: datetime | None = field(default=None, compare=False)  # None unless read from rows
    answered_at: datetime | None = field(default=None, compare=False)

    question: str | None = None
    approvers: tuple[str, ...] = ()

    @property
    def key(self) -> CallKey:
        """The key of the waiting call, or of the question that the call asks."""
        return self.round, self.tool_use_id

    @property
    def is_marked(self) -> bool:
        """Whether the log has a mark for the ask. A client never receives an ask that a grant has answered.
        Elicitations and sign-ins may come in the middle of a block, so clients receive them as notices instead.
        """
        return self.question is None and (self.answer is None or self.answer.grant is None)

    @property
    def holds_call(self) -> bool:
        """Whether the call waits for the answer before it runs. False for an elicitation, whose call already runs."""
        return self.answer is None and self.kind != "elicitation"

    @property
    def is_of_job(self) -> bool:
        """Whether a job made the ask."""
        return self.question is not None and self.tool_use_id.rpartition("#")[2].startswith("j")

    @property
    def call_id(self) -> str:
        """The id of the call, without the number of a question."""
        return self.tool_use_id if self.question is None else self.tool_use_id.rpartition("#")[0]


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's permission for later calls of one tool in a chat, valid until it is revoked. `digest` identifies the
    tool at the time of the approval. `when` is JSON text: conditions on members of the input. The person gave the
    permission with the approval of the call `tool_use_id` in `turn`.
    """

    id: UUID
    tool: str
    digest: str
    when: str | None
    turn: UUID
    tool_use_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Steer:
    """A message that the user sends to an open turn, or the report of a job. When a turn applies a steer, it adds the
    blocks of the steer. `stored` is the JSON text of these blocks in the row of the steer.
    """

    id: UUID
    blocks: tuple[Block, ...]
    stored: str = field(default="", compare=False, repr=False)


def elicitation_id(tool_use_id: str, attempt: int, number: int) -> str:
    """Returns the id of an elicitation, which is unique within the turn."""
    return f"{tool_use_id}#{attempt}.{number}"


def job_question_id(tool_use_id: str, attempt: int, number: int) -> str:
    """Returns the id of a question that a job asks in this attempt. Number 0 is the question of `Detached`."""
    return f"{tool_use_id}#j{attempt}.{number}"


def digest_of(call: Block) -> str:
    """Returns the SHA-256, in hexadecimal, of the call's round and its input as streamed. The id alone may repeat."""
    return sha256(f"{call.round} {call.text}".encode("utf-8", "surrogatepass")).hexdigest()

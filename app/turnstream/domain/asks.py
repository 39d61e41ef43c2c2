"""Asks: calls that wait for a person. Grants: permissions that outlast a call. Steers: messages to an open turn."""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal
from uuid import UUID

from turnstream.domain.blocks import Block, CallKey

AskKind = Literal["client", "approval", "elicitation", "sign_in"]
# These asks have a question. Clients show the call for all other asks.
QUESTIONS: Final = frozenset[AskKind]({"elicitation", "sign_in"})
# `result`, `approve` and `deny` come from a person. An ask without an answer expires, or a steer supersedes it.
AnswerKind = Literal["result", "approve", "deny", "expired", "superseded"]


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """The answer to an ask. `text` is the result of a client tool, or the reason of a denial. `layout` describes a
    result with files (turnstream.domain.results), `client_data` is its JSON text for clients alone. `input`, as JSON
    text, replaces the input of the call. `grant` is the stored permission that answered the ask at once, without a
    person. `by` is the person who decided, if another person than the owner decided.
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
    run a tool here (`approval`). `attempt` made the ask. `digest` identifies the exact call (`digest_of`).
    `tool_digest` identifies the tool as the person has seen the tool, if the chat may remember an approval.

    An `elicitation` is a question of a tool to the person while its call runs. `question` is its JSON text. Its
    `tool_use_id` is the id of the call with a number (`elicitation_id`). The question is open while its attempt runs.
    The question of a job has the attempt of the job, and is open until the job is over or runs again
    (`Turn.waits_for`).

    A `sign_in` has a question with a link. The server of the tool requires a sign-in, so the call was not made. After
    the sign-in any attempt makes the call.

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
    asked_at: datetime | None = field(default=None, compare=False)  # from the rows; else None
    answered_at: datetime | None = field(default=None, compare=False)

    question: str | None = None
    approvers: tuple[str, ...] = ()

    @property
    def key(self) -> CallKey:
        """The waiting call, or the question of a call."""
        return self.round, self.tool_use_id

    @property
    def is_marked(self) -> bool:
        """Whether the log has a mark of the ask. A client never receives an ask that a grant has answered. Elicitations
        and sign-ins come at any time, also in the middle of a block, so clients receive them as notices.
        """
        return self.question is None and (self.answer is None or self.answer.grant is None)

    @property
    def holds_call(self) -> bool:
        """Whether the call waits for the answer before it runs. A question of a tool comes while its call runs."""
        return self.answer is None and self.kind != "elicitation"

    @property
    def is_of_job(self) -> bool:
        """Whether a job has made the ask."""
        return self.question is not None and self.tool_use_id.rpartition("#")[2].startswith("j")

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.tool_use_id if self.question is None else self.tool_use_id.rpartition("#")[0]


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's permission for further calls of one tool in a chat, valid until its revocation. `digest` identifies
    the tool at the time of the approval. `when`, as JSON text, has conditions on members of the input. The grant comes
    from the approval of the call `tool_use_id` in `turn`.
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
    """A message of the user to an open turn, or the report of a job. The turn applies a steer as new blocks. `stored`
    is the JSON text of the row, from which the turn makes the blocks.
    """

    id: UUID
    blocks: tuple[Block, ...]
    stored: str = field(default="", compare=False, repr=False)


def elicitation_id(tool_use_id: str, attempt: int, number: int) -> str:
    """The id of an elicitation, unique within the turn."""
    return f"{tool_use_id}#{attempt}.{number}"


def job_question_id(tool_use_id: str, attempt: int, number: int) -> str:
    """The id of a question of a job in this attempt of the job. Number 0 is the question of `Detached`."""
    return f"{tool_use_id}#j{attempt}.{number}"


def digest_of(call: Block) -> str:
    """SHA-256 of the call's round and of its input as streamed, in hexadecimal digits. An id alone may repeat."""
    return sha256(f"{call.round} {call.text}".encode("utf-8", "surrogatepass")).hexdigest()

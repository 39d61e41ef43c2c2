"""Asks: calls that wait for a person. Grants: permissions that outlast a call. Steers: messages to an open turn."""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal
from uuid import UUID

from turnstream.domain.blocks import Block, CallKey

AskKind = Literal["client", "approval", "elicitation", "sign_in"]
# Asks with a question of their own. Others show the call.
QUESTIONS: Final = frozenset[AskKind]({"elicitation", "sign_in"})
# `result`, `approve` and `deny` come from a person. An ask without an answer expires, or a steer supersedes it.
AnswerKind = Literal["result", "approve", "deny", "expired", "superseded"]


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """The answer to an ask. `text` is the result of a client tool, or the reason why a call was denied; `layout`
    describes a result with files (turnstream.domain.results), `client_data` is its JSON text for clients alone.
    `input`, as JSON text, replaces the input of the call. `grant` is the permission that answered instead of a person,
    at the moment of the ask. `by` is the person who decided, if it was not the owner.
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
    run it here (`approval`). `attempt` made the ask. `digest` identifies the exact call (`digest_of`). `tool_digest`
    identifies the tool as the person was shown it, if an approval may be remembered for the chat.

    An `elicitation` is a question of a tool to the person while its call runs. `question` is its JSON text, its
    `tool_use_id` the call's with a number (`elicitation_id`). It is open while the attempt that made it runs. That of a
    job has the attempt of the job, and is open until the job is over, or runs again (`Turn.waits_for`).

    A `sign_in` has a question as well, with a link: the call was not made, because its server wants the person to sign
    in. The call is made when that is done, in any attempt.

    `approvers` are the principals who alone may answer (`Identity.principals`); without them the owner answers.
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
    asked_at: datetime | None = field(default=None, compare=False)  # as the rows have it; None until they are read
    answered_at: datetime | None = field(default=None, compare=False)

    question: str | None = None
    approvers: tuple[str, ...] = ()

    @property
    def key(self) -> CallKey:
        """The call that waits, or the question of one."""
        return self.round, self.tool_use_id

    @property
    def is_marked(self) -> bool:
        """Whether it has a place in the log. An ask that a grant answered was never shown; an elicitation comes at any
        time, in the middle of a block too, and is shown by a notice. So is a sign-in.
        """
        return self.question is None and (self.answer is None or self.answer.grant is None)

    @property
    def holds_call(self) -> bool:
        """Whether the call is not run before the answer. A question of a tool comes while its call runs."""
        return self.answer is None and self.kind != "elicitation"

    @property
    def is_of_job(self) -> bool:
        """Whether a job has asked it."""
        return self.question is not None and self.tool_use_id.rpartition("#")[2].startswith("j")

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.tool_use_id if self.question is None else self.tool_use_id.rpartition("#")[0]


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's permission to run further calls of one tool in a chat, until it is revoked. `digest` identifies the
    tool as it was then. `when`, as JSON text, has a condition for each of some members of the input. The approval of
    the call `tool_use_id` in `turn` gave it.
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
    """A message of the user to a turn that is open, or the report of a job. It becomes blocks of the turn when the turn
    takes it in. `stored` is the JSON text as it was read: the turn takes in what the row has.
    """

    id: UUID
    blocks: tuple[Block, ...]
    stored: str = field(default="", compare=False, repr=False)


def elicitation_id(tool_use_id: str, attempt: int, number: int) -> str:
    """The id of an elicitation, which no other one of the turn has."""
    return f"{tool_use_id}#{attempt}.{number}"


def job_question_id(tool_use_id: str, attempt: int, number: int) -> str:
    """The id of a question of a job in this attempt of it. 0 is that with which the job has detached."""
    return f"{tool_use_id}#j{attempt}.{number}"


def digest_of(call: Block) -> str:
    """SHA-256 of the call's round and of its input as streamed, in hexadecimal digits. Ids alone may be used again."""
    return sha256(f"{call.round} {call.text}".encode("utf-8", "surrogatepass")).hexdigest()

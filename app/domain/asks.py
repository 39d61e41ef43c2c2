"""What waits for a person, and what a person says to a turn that is open."""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import UUID

from app.domain.blocks import Block

AskKind = Literal["client", "approval"]
# `result`, `approve` and `deny` are a person's; the other two are what becomes of an ask that nobody answered.
AnswerKind = Literal["result", "approve", "deny", "expired", "superseded"]


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """`text` is the result of a client tool, or why a call was denied; `layout` how a result with files is laid out
    (app/domain/results.py). `input` is what the call is to be run with instead, as JSON text.
    """

    kind: AnswerKind
    text: str = ""
    is_error: bool = False
    input: str | None = None
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that waits: for the result of a tool that the client runs, or for leave to run it here. `attempt` asked.
    `digest` is of the exact call that was asked about.
    """

    round: int
    tool_use_id: str
    name: str
    kind: AskKind
    digest: str
    attempt: int
    expires_at: datetime | None = None
    answer: AskAnswer | None = None


@dataclass(frozen=True, slots=True)
class Steer:
    """What a user said to a turn that is open, until the turn takes it in."""

    id: UUID
    blocks: tuple[Block, ...]


def digest_of(call: Block) -> str:
    """SHA-256 of the call's round and of its input as it was streamed, in hexadecimal digits: ids may be used again."""
    return sha256(f"{call.round} {call.text}".encode("utf-8", "surrogatepass")).hexdigest()

"""Asks: calls that wait for a person. Steers: messages of the user to a turn that is open."""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import UUID

from app.domain.blocks import Block

AskKind = Literal["client", "approval"]
# `result`, `approve` and `deny` come from a person. An ask without an answer expires, or a steer supersedes it.
AnswerKind = Literal["result", "approve", "deny", "expired", "superseded"]


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """The answer to an ask. `text` is the result of a client tool, or the reason why a call was denied; `layout` says
    how a result with files is laid out (app/domain/results.py), `client_data` (JSON text) what only clients see of it.
    `input`, as JSON text, replaces the input of the call.
    """

    kind: AnswerKind
    text: str = ""
    is_error: bool = False
    input: str | None = None
    layout: str | None = None
    client_data: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that waits for a person: for the result of a tool that the client runs (`client`), or for permission to
    run it here (`approval`). `attempt` made the ask. `digest` identifies the exact call (`digest_of`).
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
    """A message of the user to a turn that is open. It becomes blocks of the turn when the turn takes it in."""

    id: UUID
    blocks: tuple[Block, ...]


def digest_of(call: Block) -> str:
    """SHA-256 of the call's round and of its input as streamed, in hexadecimal digits. Ids alone may be used again."""
    return sha256(f"{call.round} {call.text}".encode("utf-8", "surrogatepass")).hexdigest()

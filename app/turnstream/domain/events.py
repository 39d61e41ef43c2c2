"""Events that a client receives: marks are entries of the turn's log, deltas are text between marks, notices are
neither stored nor replayed.

The `attempt` of a mark is the attempt that appended the mark. From that mark on, cursors of earlier attempts are void.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from turnstream.domain.asks import AskKind
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.degraded import Degraded
from turnstream.domain.jobs import Job
from turnstream.domain.output import Phase
from turnstream.domain.turns import Status, TurnError

IN_THE_BACKGROUND = "It runs in the background."


@dataclass(frozen=True, slots=True)
class TurnStart:
    """The first mark of a turn; `turn_attempt` is the present attempt of the turn."""

    attempt: int
    turn: UUID
    chat: UUID
    model: str
    turn_attempt: int
    status: Status


@dataclass(frozen=True, slots=True)
class Answered:
    """A call of the previous round, with a result that the request of the new round contains."""

    tool_use_id: str
    name: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class RoundStart:
    """The start of a model call. `messages` counts the sent messages; `answered` has the calls with new results."""

    attempt: int
    round: int
    messages: int
    answered: tuple[Answered, ...]


@dataclass(frozen=True, slots=True)
class BlockStart:
    """The start of a block, whose text follows as deltas."""

    attempt: int
    index: int
    round: int
    type: str
    tool_use_id: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class BlockStop:
    """The end of a block. `block` is the block as stored."""

    attempt: int
    block: Block


@dataclass(frozen=True, slots=True)
class RoundStop:
    """The end of a model call whose round is sealed."""

    attempt: int
    round: int
    stop_reason: str | None
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequiredAction:
    """A call that waits for a person. `input` is JSON text. `can_remember`: the chat may store the approval."""

    tool_use_id: str
    name: str
    kind: AskKind
    input: str
    digest: str
    expires_at: datetime | None
    can_remember: bool = False


@dataclass(frozen=True, slots=True)
class ActionRequired:
    """The calls of one round that wait for a person."""

    attempt: int
    round: int
    actions: tuple[RequiredAction, ...]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The last mark of a turn that has ended."""

    attempt: int
    status: Status
    stop_reason: str | None
    usage: Mapping[str, Any]
    error: TurnError | None
    degraded: tuple[Degraded, ...] = ()
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """A piece of the text of a block. `offset` and the length of `text` count Unicode code points."""

    index: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Reset:
    """The client must drop the blocks from `index` on, because `attempt` writes these blocks again."""

    attempt: int
    index: int


@dataclass(frozen=True, slots=True)
class Notice:
    """An event without an id, for the user interface only. `name` is the name of the event."""

    name: str
    data: Mapping[str, Any]


# Follows all content that existed when the client connected. Only clients that ask for this notice receive it.
CAUGHT_UP = Notice("caught_up", {})


def preliminary_notice(output: PreliminaryOutput) -> Notice:
    data = {} if output.data is None else {"data": output.data}
    return Notice("tool_output", {"tool_use_id": output.tool_use_id, "name": output.name, "text": output.text, **data})


def progress_notice(job: Job) -> Notice:
    message = job.progress or IN_THE_BACKGROUND
    shown = {"tool_use_id": job.tool_use_id, "name": job.name, "message": message, "job": job.shown()}
    return Notice("tool_progress", shown)


Mark = TurnStart | RoundStart | BlockStart | BlockStop | RoundStop | ActionRequired | TurnEnd
Event = Mark | BlockDelta | Reset

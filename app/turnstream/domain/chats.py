"""Chats, and the placement of a message that arrives while turns of its branch are open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, assert_never
from uuid import UUID

from turnstream.domain.errors import Conflict
from turnstream.domain.turns import Turn

# The effect of a message on a busy branch. `reject`: the server refuses the message. `enqueue`: the answer waits for
# the end of the open turns. `interrupt`: the server cancels the open turns. `steer`: an open turn receives the message.
# `branch`: the message begins a branch beside the open turns.
OnBusy = Literal["reject", "enqueue", "interrupt", "steer", "branch"]

LONGEST_TITLE = 60  # characters of a title that the server chooses


@dataclass(frozen=True, slots=True)
class Chat:
    """A tree of turns that belongs to one owner. `settings` are the defaults for its turns, in the form of the API
    (model, params, tools, limits). `updated_at` grows with every change and every new turn, by the database's clock.
    """

    id: UUID
    owner: str
    title: str | None
    system_prompt: str | None
    settings: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a new message: after the answer `before`, at the root if `before` is None, or inside the first
    turn of `steerable` that is still open. The server cancels the turns in `interrupted`.
    """

    before: Turn | None
    steerable: tuple[Turn, ...] = ()
    interrupted: tuple[UUID, ...] = ()


def place_message(before: Turn | None, branch: Sequence[Turn], on_busy: OnBusy) -> Placement:
    """Decides the position of a message that follows the answer `before`. `branch` has the turns up to that answer,
    oldest first; only its first turn may have ended. Raises Conflict if a turn is open and `on_busy` is `reject`.
    """
    busy = [turn for turn in branch if not turn.ended]
    if before is None or not busy:
        return Placement(before)
    match on_busy:
        case "reject":
            raise branch_is_busy(before, ", or send another `on_busy`, such as `enqueue` or `interrupt`")
        case "enqueue":
            return Placement(before)
        case "interrupt":
            return Placement(before, interrupted=tuple(turn.id for turn in busy))
        case "steer":
            return Placement(before, steerable=tuple(turn for turn in busy if not turn.cancel_requested))
        case "branch":
            return Placement(branch[0] if branch[0].ended else None)
        case _:
            assert_never(on_busy)


def branch_is_busy(turn: Turn, otherwise: str = "") -> Conflict:
    """Returns the refusal of a message, because `turn` is still open. `otherwise` adds a remedy to its text."""
    if turn.status == "waiting":
        waits = f"Turn {turn.id} on this branch waits for an action or a background tool"
        return Conflict(f"{waits}; answer or cancel the turn{otherwise}.", code="turn_waiting")
    detail = f"Turn {turn.id} is still running on this branch; wait for its end or cancel the turn{otherwise}."
    return Conflict(detail, code="turn_running")


def title_from(text: str) -> str | None:
    """Returns a title for a chat without a title: the first words of a text, in one line. None for a blank text."""
    line = " ".join(text.split())
    if len(line) <= LONGEST_TITLE:
        return line or None
    beginning, _, _ = line[:LONGEST_TITLE].rpartition(" ")
    return (beginning if len(beginning) > LONGEST_TITLE // 2 else line[: LONGEST_TITLE - 1]).rstrip(" ,;:") + "…"

"""Chats, and the placement of a message that arrives while turns of its branch are open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, assert_never
from uuid import UUID

from turnstream.domain.errors import Conflict
from turnstream.domain.turns import Turn

# The effect of a message on a busy branch. `reject`: it is refused. `enqueue`: its answer waits for the end of the
# open turns. `interrupt`: they are cancelled. `steer`: it goes into one of them. `branch`: it is beside them.
OnBusy = Literal["reject", "enqueue", "interrupt", "steer", "branch"]

LONGEST_TITLE = 60  # characters of one that the server gives


@dataclass(frozen=True, slots=True)
class Chat:
    """A tree of turns of one owner. `settings` are the defaults of its turns, as the API takes them (model, params,
    tools, limits). `updated_at` grows with every change and every turn that is made, by the database's clock.
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
    """The place of a message: after the answer `before`, or at the root; or into the first of `steerable` turns that is
    still open. The turns in `interrupted` are to stop.
    """

    before: Turn | None
    steerable: tuple[Turn, ...] = ()
    interrupted: tuple[UUID, ...] = ()


def place_message(before: Turn | None, branch: Sequence[Turn], on_busy: OnBusy) -> Placement:
    """Decides the place of a message that follows the answer `before`. `branch` leads to that answer, oldest first: all
    of its turns are open but perhaps the first. Raises Conflict if one is open and `on_busy` is `reject`.
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
    """The refusal of a message for the sake of an open turn. `otherwise` adds a remedy."""
    if turn.status == "waiting":
        waits = f"Turn {turn.id} on this branch waits for an action or a background tool"
        return Conflict(f"{waits}; answer it or cancel it{otherwise}.", code="turn_waiting")
    detail = f"Turn {turn.id} is still running on this branch; wait for its end or cancel it{otherwise}."
    return Conflict(detail, code="turn_running")


def title_from(text: str) -> str | None:
    """The title of a chat that has no other: the first words of a text, in one line. None for a blank text."""
    line = " ".join(text.split())
    if len(line) <= LONGEST_TITLE:
        return line or None
    beginning, _, _ = line[:LONGEST_TITLE].rpartition(" ")
    return (beginning if len(beginning) > LONGEST_TITLE // 2 else line[: LONGEST_TITLE - 1]).rstrip(" ,;:") + "…"

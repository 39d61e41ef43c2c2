"""The events of streams as Python values. An event with an unknown name becomes a plain `ServerEvent`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

Json = dict[str, Any]


class ConnectionEvent(StrEnum):
    """Names of the events that the client itself adds to the events of the server."""

    OPENED = "connected"
    LOST = "disconnected"  # data: `reason`, and `seconds` until the next try


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`data` has all members of the event, including unknown members. `cursor` is the position after the event; a
    notice has no cursor.
    """

    name: str
    data: Json
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(ServerEvent):
    turn: str
    chat: str
    model: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(ServerEvent):
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStarted(ServerEvent):
    index: int
    round: int
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAdded(ServerEvent):
    index: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEnded(ServerEvent):
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(ServerEvent):
    round: int
    stop_reason: str | None
    usage: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsWaiting(ServerEvent):
    """`calls` wait for a person, or for a result that the client provides."""

    round: int
    calls: list[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksTakenBack(ServerEvent):
    """The block at `index` and all later blocks are void."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone(ServerEvent):
    """The last event of a turn. `error` is set if the turn failed."""

    stop_reason: str | None
    usage: Json
    error: Json | None

    @property
    def status(self) -> str:
        """`complete`, `cancelled` or `error`."""
        return self.name.removeprefix("turn_")


_TYPES: Final[Mapping[str, type[ServerEvent]]] = {
    "turn_start": TurnStarted,
    "round_start": RoundStarted,
    "block_start": BlockStarted,
    "block_delta": TextAdded,
    "block_stop": BlockEnded,
    "round_stop": RoundEnded,
    "action_required": CallsWaiting,
    "turn_complete": TurnDone,
    "turn_cancelled": TurnDone,
    "turn_error": TurnDone,
}
_OWN: Final = {each.name for each in fields(ServerEvent)}


def event_of(name: str, data: Json, cursor: str | None = None) -> ServerEvent:
    # A `reset` in an owner's feed has no members, because it concerns the list of chats, not the blocks of a turn.
    kind = BlocksTakenBack if name == "reset" and "index" in data else _TYPES.get(name, ServerEvent)
    members = {each.name: data.get(each.name) for each in fields(kind) if each.name not in _OWN}
    return kind(name, data, cursor, **members)

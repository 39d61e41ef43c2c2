"""The events of streams as values. An unknown event is a `ServerEvent` with its name and data."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

Json = dict[str, Any]


class ConnectionEvent(StrEnum):
    """Names of the client's own events, besides the server's."""

    OPENED = "connected"
    LOST = "disconnected"  # data: `reason`, and `seconds` until the next try


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`data` has all members, including unknown ones. `cursor` is the position behind the event; a notice has none."""

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
    """`calls` wait for a person, or for a result of the client."""

    round: int
    calls: list[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksTakenBack(ServerEvent):
    """The blocks from `index` on are void."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone(ServerEvent):
    """The last event of a turn. `error` is set for a failed turn."""

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
    # `reset` of an owner's feed has no members: it concerns the list of chats.
    kind = BlocksTakenBack if name == "reset" and "index" in data else _TYPES.get(name, ServerEvent)
    members = {each.name: data.get(each.name) for each in fields(kind) if each.name not in _OWN}
    return kind(name, data, cursor, **members)

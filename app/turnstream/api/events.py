"""Events of the streams: their members, descriptions and JSON, and the frames of a turn's stream."""

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from turnstream.api.codec import block_details, degraded_json, error_json, identity_json, required_action_json, to_json
from turnstream.api.schemas.fields import Absent, without_defaults
from turnstream.api.schemas.responses import BlockMembers, DegradedOut, ErrorOut, JobOut, WantedOut
from turnstream.domain import events as domain
from turnstream.domain.cursor import Cursor
from turnstream.domain.events import BlockDelta, Event, Notice, TurnEnd
from turnstream.domain.output import Phase
from turnstream.domain.turns import Status


class _Described(BaseModel):
    @classmethod
    def members(cls, event: Any) -> dict[str, Any]:
        """Returns the JSON members of a domain event: for each field, the attribute of the same name."""
        return {name: getattr(event, name) for name in cls.model_fields}


class EventSchema(_Described):
    model_config = ConfigDict(extra="forbid")


class TurnStartEvent(EventSchema):
    """The first event of every turn."""

    turn: UUID
    chat: UUID
    model: str
    attempt: int
    status: Status

    @classmethod
    def members(cls, event: domain.TurnStart) -> dict[str, Any]:
        return super().members(event) | {"attempt": event.turn_attempt}


class AnsweredCall(EventSchema):
    tool_use_id: str
    name: str
    is_error: bool


class RoundStartEvent(EventSchema):
    """A model call begins. `messages` counts the messages of the call, `answered` lists the tool results among them."""

    round: int
    messages: int
    answered: list[AnsweredCall]


class BlockStartEvent(EventSchema):
    """A block begins. A tool_use has `id` and `name`, a tool_result `tool_use_id` and `name`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    index: int
    round: int
    type: str
    id: str | Absent = None
    tool_use_id: str | Absent = None
    name: str | Absent = None

    @classmethod
    def members(cls, event: domain.BlockStart) -> dict[str, Any]:
        members = {"index": event.index, "round": event.round, "type": event.type}
        return members | identity_json(event.type, event.tool_use_id, event.name)


class BlockDeltaEvent(EventSchema):
    """New text of the open block: text, thinking or partial JSON. `offset` counts Unicode code points."""

    index: int
    offset: int
    text: str


class BlockStopEvent(BlockMembers, _Described):
    """The block is complete and stored. This event has the members that deltas cannot carry."""

    index: int

    @classmethod
    def members(cls, event: domain.BlockStop) -> dict[str, Any]:
        return {"index": event.block.index, **block_details(event.block)}


class RoundStopEvent(EventSchema):
    """The model's reply is complete. Results of the tools it called may still follow."""

    round: int
    stop_reason: str | None
    usage: dict[str, Any]


class ResetEvent(EventSchema):
    """Discard the blocks from `index` on: `attempt` writes them again."""

    attempt: int
    index: int


class ActionRequiredEvent(EventSchema):
    """These calls wait for a person. Answer them at …/actions, one by one or together."""

    round: int
    calls: list[WantedOut]

    @classmethod
    def members(cls, event: domain.ActionRequired) -> dict[str, Any]:
        return {"round": event.round, "calls": list(map(required_action_json, event.actions))}


class TurnEndEvent(EventSchema):
    """The last event; the stream ends after it. `degraded` lists the policies that the turn needed, if any."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    stop_reason: str | None
    usage: dict[str, Any]
    degraded: list[DegradedOut] | Absent = None

    @classmethod
    def members(cls, event: TurnEnd) -> dict[str, Any]:
        members: dict[str, Any] = {"stop_reason": event.stop_reason, "usage": event.usage}
        if event.degraded:
            members["degraded"] = list(map(degraded_json, event.degraded))
        if event.phase is not None:
            members["phase"] = event.phase
        if event.error is not None:
            members["error"] = error_json(event.error)
        return members


class TurnCancelledEvent(TurnEndEvent):
    """The last event of a cancelled turn. For a structured turn, `phase` is its phase at the cancellation."""

    phase: Phase | Absent = None


class TurnErrorEvent(TurnEndEvent):
    """The last event of a turn that failed."""

    error: ErrorOut


class StatusNotice(BaseModel):
    """A notice about the turn: its stage, or an event of the provider. With the stage `waiting`, the model call starts
    in about `seconds`, because the rate limit of its provider is used up. The notice has no id and is never sent again.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=without_defaults)

    stage: Literal["processing", "waiting", "streaming", "executing"] | Absent = None
    seconds: float | Absent = None


class ToolProgressNotice(EventSchema):
    """A notice of a tool that runs. The notice has no id and is never sent again. A background call has a `job`: its
    notice also comes when the state of the job changes, and a connecting client gets the last notice.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    tool_use_id: str
    name: str
    message: str
    job: JobOut | Absent = None


class ToolOutputNotice(EventSchema):
    """A notice with the whole output of a running tool so far. It has no id. Connecting clients get the last notice."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    tool_use_id: str
    name: str
    text: str
    data: Any = None


class RetryNotice(EventSchema):
    """The model call failed, as `message` says, for the `tries`th time in a row. `model` is called after `seconds`. The
    notice has no id and is never sent again.
    """

    error: str
    message: str
    seconds: float
    model: str
    tries: int


class AccessEndedNotice(EventSchema):
    """The last frame of a stream with a revoked or expired credential. `status` is the status of the next request with
    this credential. With another credential the client continues from its cursor. The notice has no id.
    """

    status: int
    detail: str


class CaughtUpNotice(EventSchema):
    """The client has received all content that existed when it connected. This notice comes once in a connection with
    `caught_up=true`, unless the turn ends earlier. The notice has no id.
    """


_EVENTS: Mapping[str, type[_Described]] = {
    "turn_start": TurnStartEvent,
    "round_start": RoundStartEvent,
    "block_start": BlockStartEvent,
    "block_delta": BlockDeltaEvent,
    "block_stop": BlockStopEvent,
    "round_stop": RoundStopEvent,
    "reset": ResetEvent,
    "action_required": ActionRequiredEvent,
    "turn_complete": TurnEndEvent,
    "turn_cancelled": TurnCancelledEvent,
    "turn_error": TurnErrorEvent,
}
# The names of events. The name of a TurnEnd is absent, because it depends on the status.
_NAMES: Mapping[type[Event], str] = {
    domain.TurnStart: "turn_start",
    domain.RoundStart: "round_start",
    domain.BlockStart: "block_start",
    domain.BlockDelta: "block_delta",
    domain.BlockStop: "block_stop",
    domain.RoundStop: "round_stop",
    domain.Reset: "reset",
    domain.ActionRequired: "action_required",
}
EVENTS: Mapping[str, type[BaseModel]] = {
    **_EVENTS,
    "status": StatusNotice,
    "tool_progress": ToolProgressNotice,
    "tool_output": ToolOutputNotice,
    "retry": RetryNotice,
    "access_ended": AccessEndedNotice,
    "caught_up": CaughtUpNotice,
}


def named(event: Event | Notice) -> tuple[str, Mapping[str, Any]]:
    """Returns the event's name, and its data as JSON values."""
    if isinstance(event, Notice):
        return event.name, event.data
    name = f"turn_{event.status}" if isinstance(event, TurnEnd) else _NAMES[event.__class__]
    return name, _EVENTS[name].members(event)


def frame(event: Event | Notice, cursor: Cursor | None) -> bytes:
    """Encodes one SSE frame. `cursor` is the position after the event; None for a notice."""
    if event.__class__ is BlockDelta:  # this branch runs for every token
        assert isinstance(event, BlockDelta)
        return b'id: %d-%d-%d\nevent: block_delta\ndata: {"index":%d,"offset":%d,"text":%b}\n\n' % (
            *(cursor or Cursor()),
            event.index,
            event.offset,
            to_json(event.text),
        )
    name, data = named(event)
    position = b"" if cursor is None else b"id: %d-%d-%d\n" % cursor
    return b"%bevent: %b\ndata: %b\n\n" % (position, name.encode(), to_json(data))

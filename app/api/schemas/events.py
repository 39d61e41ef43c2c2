"""What the stream's events carry, said for readers of the OpenAPI document; `codec.py` writes them."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, create_model

from app.api.schemas.fields import Absent, without_defaults
from app.api.schemas.responses import BlockMembers, BlockOut, ChatOut, DegradedOut, ErrorOut, WantedOut
from app.domain.output import Phase
from app.domain.turns import Status


class EventSchema(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TurnStartEvent(EventSchema):
    """The first event of every turn."""

    turn: UUID
    chat: UUID
    model: str
    attempt: int
    status: Status


class AnsweredCall(EventSchema):
    tool_use_id: str
    name: str
    is_error: bool


class RoundStartEvent(EventSchema):
    """A model call begins. `messages` counts what it was sent, `answered` names the tools it reacts to."""

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


class BlockDeltaEvent(EventSchema):
    """More of the open block: text, thinking or partial JSON alike. `offset` counts Unicode code points."""

    index: int
    offset: int
    text: str


class BlockStopEvent(BlockMembers):
    """The block is whole and stored. With it comes what deltas cannot carry."""

    index: int


class RoundStopEvent(EventSchema):
    """The model's reply is whole. Results of the tools it called may still follow."""

    round: int
    stop_reason: str | None
    usage: dict[str, Any]


class ResetEvent(EventSchema):
    """Forget the blocks from `index` on: they are written anew by `attempt`."""

    attempt: int
    index: int


class ActionRequiredEvent(EventSchema):
    """These calls wait for a person. They are answered at …/actions, one by one or together."""

    round: int
    calls: list[WantedOut]


class TurnEndEvent(EventSchema):
    """The last event; the stream ends after it. `degraded` is there when a tool needed one of its policies."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    stop_reason: str | None
    usage: dict[str, Any]
    degraded: list[DegradedOut] | Absent = None


class TurnCancelledEvent(TurnEndEvent):
    """The last event, of a turn that was cancelled: a structured one in the midst of a `phase`."""

    phase: Phase | Absent = None


class TurnErrorEvent(TurnEndEvent):
    """The last event, of a turn that failed."""

    error: ErrorOut


class StatusNotice(BaseModel):
    """A passing word about the turn: the stage it is in, or something of the provider's. No id, never sent again."""

    model_config = ConfigDict(extra="allow", json_schema_extra=without_defaults)

    stage: Literal["processing", "streaming", "executing"] | Absent = None


class ToolProgressNotice(EventSchema):
    """A passing word from a tool that runs. No id, never sent again."""

    tool_use_id: str
    name: str
    message: str


class RetryNotice(EventSchema):
    """The model call failed and is tried again after so many seconds. No id, never sent again."""

    error: str
    seconds: float


EVENTS: Mapping[str, type[BaseModel]] = {
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
    "status": StatusNotice,
    "tool_progress": ToolProgressNotice,
    "retry": RetryNotice,
}


# --- the stream of a chat --------------------------------------------------------------------------------------------


class ChatEvent(ChatOut):
    """The chat as it is now, at first and whenever title, system prompt or settings have changed."""


class TurnEvent(EventSchema):
    """A turn that was not told of before; a user turn with all of its blocks."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    turn: UUID
    parent_id: UUID | None
    role: Literal["user", "assistant"]
    created_at: datetime
    blocks: list[BlockOut] | Absent = None


class ChatDeletedEvent(EventSchema):
    """The chat was deleted; the stream ends after it. No id: there is nothing to come back for."""


@cache
def _of_turn(model: type[BaseModel]) -> type[BaseModel]:
    """The same event in the stream of a chat: with the turn it belongs to."""
    return create_model(f"Chat{model.__name__}", __base__=model, __doc__=model.__doc__, turn=(UUID, ...))


CHAT_EVENTS: Mapping[str, type[BaseModel]] = {
    "chat": ChatEvent,
    "turn": TurnEvent,
    "chat_deleted": ChatDeletedEvent,
    **{name: _of_turn(model) for name, model in EVENTS.items()},
}


# --- the feed of an owner --------------------------------------------------------------------------------------------


class FeedChatEvent(ChatOut):
    """A chat as it is now: one that was made or changed, or in which a turn was made."""


class FeedChatDeletedEvent(EventSchema):
    """A chat was deleted."""

    id: UUID


class FeedTurnEvent(EventSchema):
    """An assistant turn as it is now: one that was made, or whose status has changed; and each that is open when the
    connection begins.
    """

    chat: UUID
    turn: UUID
    role: Literal["assistant"]
    status: Status
    stop_reason: str | None


class FeedResetEvent(EventSchema):
    """The cursor is too old, or too much has changed since: read the list of chats again, and go on from here."""


FEED_EVENTS: Mapping[str, type[BaseModel]] = {
    "chat": FeedChatEvent,
    "chat_deleted": FeedChatDeletedEvent,
    "turn": FeedTurnEvent,
    "reset": FeedResetEvent,
}

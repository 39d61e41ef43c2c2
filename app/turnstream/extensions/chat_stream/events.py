"""The events in the stream of a chat: the chat's own events, and the events of its turns, to which the turn's id is
added.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, create_model

from turnstream.api.codec import block_json
from turnstream.api.events import EVENTS, AccessEndedNotice, CaughtUpNotice, EventSchema
from turnstream.api.schemas.fields import Absent, without_defaults
from turnstream.api.schemas.responses import BlockOut, ChatOut
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.rows import DeletedTurns


class ChatEvent(ChatOut):
    """The chat as it is now, at first and whenever title, system prompt or settings have changed."""


class TurnEvent(EventSchema):
    """A turn that the client does not know yet; a user turn with all of its blocks."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    turn: UUID
    parent_id: UUID | None
    role: Literal["user", "assistant"]
    created_at: datetime
    blocks: list[BlockOut] | Absent = None

    @classmethod
    def members(cls, event: Turn) -> dict[str, Any]:
        """Returns all members of a user turn. For an answer, returns only the members that the answer's own events
        lack.
        """
        members = {"turn": event.id, "parent_id": event.parent_id, "role": event.role, "created_at": event.created_at}
        return members if event.role == "assistant" else members | {"blocks": list(map(block_json, event.blocks))}


class TurnsDeletedEvent(EventSchema):
    """Turns that were deleted. Some may be unknown to the client. No remaining turn follows one of them."""

    turns: list[UUID]

    @classmethod
    def members(cls, event: DeletedTurns) -> dict[str, Any]:
        return super().members(event)


class ChatDeletedEvent(EventSchema):
    """The chat was deleted; the stream ends after it. It has no id: a resumption is impossible."""


class QueueNotice(EventSchema):
    """A notice: something in the chat has changed without another event, such as a message in the queue. Clients read
    the queue again. It has no id and is never sent again.
    """


_OF_STREAM = (AccessEndedNotice, CaughtUpNotice)  # these events are about a connection, not about a turn


@cache
def _of_turn(model: type[BaseModel]) -> type[BaseModel]:
    """Returns the model of a turn's event in the stream of a chat, where the event also has the id of its turn."""
    return create_model(f"Chat{model.__name__}", __base__=model, __doc__=model.__doc__, turn=(UUID, ...))


CHAT_EVENTS: Mapping[str, type[BaseModel]] = {
    "chat": ChatEvent,
    "turn": TurnEvent,
    "turns_deleted": TurnsDeletedEvent,
    "chat_deleted": ChatDeletedEvent,
    "queue": QueueNotice,
    **{name: _of_turn(model) for name, model in EVENTS.items() if model not in _OF_STREAM},
    "access_ended": AccessEndedNotice,
    "caught_up": CaughtUpNotice,
}

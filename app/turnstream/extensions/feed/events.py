"""Events of the feed: their members and descriptions."""

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel

from turnstream.api.events import AccessEndedNotice, EventSchema
from turnstream.api.schemas.responses import ChatOut
from turnstream.domain.turns import Status
from turnstream.extensions.feed.rows import TurnStatus


class FeedChatEvent(ChatOut):
    """The present state of a chat, sent after the chat is created or changed, or gets a new turn."""


class FeedChatDeletedEvent(EventSchema):
    """A chat was deleted."""

    id: UUID


class FeedTurnEvent(EventSchema):
    """The present state of an assistant turn, sent when the turn is created, and when its status, its `waiting` calls
    or its background `jobs` change. At the start of a connection, this event is also sent for each turn that is open or
    has `jobs`.
    """

    chat: UUID
    turn: UUID
    role: Literal["assistant"]
    status: Status
    stop_reason: str | None
    waiting: int
    jobs: int

    @classmethod
    def members(cls, event: TurnStatus) -> dict[str, Any]:
        state = {"status": event.status, "stop_reason": event.stop_reason, "waiting": event.waiting, "jobs": event.jobs}
        return {"chat": event.chat, "turn": event.id, "role": "assistant", **state}


class FeedResetEvent(EventSchema):
    """The cursor is too old, or too many changes followed: clients must read the list of chats again, and then continue
    the feed from this event.
    """


FEED_EVENTS: Mapping[str, type[BaseModel]] = {
    "chat": FeedChatEvent,
    "chat_deleted": FeedChatDeletedEvent,
    "turn": FeedTurnEvent,
    "reset": FeedResetEvent,
    "access_ended": AccessEndedNotice,
}

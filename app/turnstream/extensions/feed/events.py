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
    """A chat as it is now: one that was made or changed, or in which a turn was made."""


class FeedChatDeletedEvent(EventSchema):
    """A chat was deleted."""

    id: UUID


class FeedTurnEvent(EventSchema):
    """An assistant turn as it is now: one that was made, or whose status or number of `waiting` calls or background
    `jobs` has changed; and each that is open, or has `jobs`, when the connection begins.
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
    """The cursor is too old, or too much has changed since: read the list of chats again, and continue from here."""


FEED_EVENTS: Mapping[str, type[BaseModel]] = {
    "chat": FeedChatEvent,
    "chat_deleted": FeedChatDeletedEvent,
    "turn": FeedTurnEvent,
    "reset": FeedResetEvent,
    "access_ended": AccessEndedNotice,
}

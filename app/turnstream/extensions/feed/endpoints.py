"""The SSE endpoint that streams the feed of an owner, and the encoding of its frames."""

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.services import services_and_owner
from turnstream.api.streams.response import FrameResponse
from turnstream.api.streams.turn import requested_cursor
from turnstream.api.views import chat_out
from turnstream.domain.chats import Chat
from turnstream.extensions.feed.events import FeedTurnEvent
from turnstream.extensions.feed.reader import DeletedChat, FeedCursor, FeedEvent, OwnerFeed
from turnstream.extensions.feed.rows import TurnStatus


async def stream_feed(request: Request) -> Response:
    services, owner = services_and_owner(request)
    services.streams.take(request)
    _, cursor = requested_cursor(request, FeedCursor.parse, None)
    feed = cast("OwnerFeed", services.states["feed"])
    reader = await feed.open(services.storage.of_owner, owner, cursor, frame)
    return FrameResponse(reader.frames(), services.http.stream_life, services.http.heartbeat, services.streams)


def frame(event: FeedEvent | None, cursor: FeedCursor) -> bytes:
    """Encodes one SSE frame. A frame without an event only advances the client's cursor."""
    name = "reset"
    data: dict[str, Any] = {}
    match event:
        case None:
            return f"id: {cursor}\n\n".encode()
        case Chat():
            name, data = "chat", chat_out(event).model_dump(mode="json")
        case DeletedChat(chat):
            name, data = "chat_deleted", {"id": chat}
        case TurnStatus():
            name, data = "turn", FeedTurnEvent.members(event)
        case "reset":
            pass
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(cursor).encode(), name.encode(), to_json(data))

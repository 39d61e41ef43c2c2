"""The SSE endpoint that streams a chat, and the frames of this stream."""

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.events import named
from turnstream.api.http.errors import BadRequest
from turnstream.api.http.reading import flag_of, id_of
from turnstream.api.services import Services, services_and_owner
from turnstream.api.streams.response import FrameResponse
from turnstream.api.streams.turn import requested_cursor
from turnstream.api.views import chat_out
from turnstream.domain.chats import Chat
from turnstream.domain.events import BlockDelta, Notice
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.beginnings import StreamedTurns
from turnstream.extensions.chat_stream.cursor import parse_cursor
from turnstream.extensions.chat_stream.events import TurnEvent, TurnsDeletedEvent
from turnstream.extensions.chat_stream.reader import ChatItem, ChatReader, EventOfTurn, Sources
from turnstream.extensions.chat_stream.rows import ChatNews, DeletedTurns
from turnstream.extensions.chat_stream.wakeups import ChatWakeups
from turnstream.stream.chat_cursor import ChatCursor


async def stream_chat(request: Request) -> Response:
    services, owner = services_and_owner(request)
    services.streams.take(request)
    chat = id_of(request, "chat")
    field, cursor = requested_cursor(request, parse_cursor, ChatCursor())
    try:
        reader = await open_reader(services, owner, chat, cursor, caught_up=flag_of(request, "caught_up"))
    except ValueError as error:
        raise BadRequest(str(error), field=field, code="unknown_cursor") from None
    return FrameResponse(reader.frames(), services.http.stream_life, services.http.heartbeat, services.streams)


async def open_reader(services: Services, owner: str, chat: UUID, cursor: ChatCursor, *, caught_up: bool) -> ChatReader:
    """Returns a reader of the chat, from `cursor` on. Raises NotFound, and ValueError for a cursor of another chat."""
    await services.storage.chats.get(owner, chat)
    reader = ChatReader(sources_of(services), owner, chat, cursor, frame, caught_up=caught_up)
    await reader.open()
    return reader


def sources_of(services: Services) -> Sources:
    wakeups = cast("ChatWakeups", services.states["chat_stream"])
    database = services.storage.of_owner
    return Sources(ChatNews(database), StreamedTurns(database), services.live.directory, wakeups)


def frame(item: ChatItem, cursor: ChatCursor | None) -> bytes:
    """Encodes one SSE frame. An event of a turn has the same members as in the turn's own stream, and the additional
    member `turn`.
    """
    position = b"" if cursor is None else b"id: %b\n" % str(cursor).encode()
    if isinstance(item, EventOfTurn) and isinstance(item.event, BlockDelta):  # a short path for the most frequent event
        delta = item.event
        return b'%bevent: block_delta\ndata: {"turn":"%b","index":%d,"offset":%d,"text":%b}\n\n' % (
            position,
            str(item.turn).encode(),
            delta.index,
            delta.offset,
            to_json(delta.text),
        )
    name, data = _named(item)
    return b"%bevent: %b\ndata: %b\n\n" % (position, name.encode(), to_json(data))


def _named(item: ChatItem) -> tuple[str, Mapping[str, Any]]:
    match item:
        case EventOfTurn(turn, event):
            name, data = named(event)
            return name, {"turn": turn, **data}
        case Turn():
            return "turn", TurnEvent.members(item)
        case DeletedTurns():
            return "turns_deleted", TurnsDeletedEvent.members(item)
        case Chat():
            return "chat", chat_out(item).model_dump(mode="json")
        case Notice(name, data):
            return name, data
        case None:
            return "chat_deleted", {}

"""One stream for a chat: the SSE endpoint around the reader of a chat, and the frames it sends."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from app.api.codec import to_json
from app.api.events import TurnEvent, named
from app.api.http.errors import BadRequest
from app.api.http.reading import id_of
from app.api.schemas.responses import TurnOut
from app.api.services import Services, begin
from app.api.streams.turn import FrameResponse, asked_cursor
from app.api.views import chat_out
from app.domain.chats import Chat
from app.domain.cursor import Cursor
from app.domain.events import BlockDelta
from app.domain.turns import ENDED, Turn
from app.storage.chat_changes import ChatState
from app.stream.chat.cursor import ChatCursor
from app.stream.chat.reader import ChatItem, ChatReader, EventOfTurn, Sources


async def stream_chat(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    field, cursor = asked_cursor(request, ChatCursor.parse, ChatCursor())
    try:
        reader = await open_reader(services, owner, chat, cursor)
    except ValueError as error:
        raise BadRequest(str(error), field=field) from None
    return FrameResponse(reader.frames(), services.http.stream_life, services.http.heartbeat)


async def open_reader(services: Services, owner: str, chat: UUID, cursor: ChatCursor) -> ChatReader:
    """Raises NotFound, and ValueError for a cursor of another chat."""
    await services.storage.chats.get(owner, chat)
    sources = Sources(
        services.storage.chat_changes, services.storage.turns, services.live.directory, services.live.chat_wakeups
    )
    reader = ChatReader(sources, owner, chat, cursor, frame)
    await reader.open()
    return reader


def frame(told: ChatItem, cursor: ChatCursor | None) -> bytes:
    """One SSE frame: an event of a turn is that of the turn's own stream, with `turn` besides."""
    position = b"" if cursor is None else b"id: %b\n" % str(cursor).encode()
    if isinstance(told, EventOfTurn) and isinstance(told.event, BlockDelta):  # the token path
        delta = told.event
        return b'%bevent: block_delta\ndata: {"turn":"%b","index":%d,"offset":%d,"text":%b}\n\n' % (
            position,
            str(told.turn).encode(),
            delta.index,
            delta.offset,
            to_json(delta.text),
        )
    name, data = _named(told)
    return b"%bevent: %b\ndata: %b\n\n" % (position, name.encode(), to_json(data))


def _named(told: ChatItem) -> tuple[str, Mapping[str, Any]]:
    match told:
        case EventOfTurn(turn, event):
            name, data = named(event)
            return name, {"turn": turn, **data}
        case Turn():
            return "turn", TurnEvent.members(told)
        case Chat():
            return "chat", chat_out(told).model_dump(mode="json")
        case None:
            return "chat_deleted", {}


def cursor_behind(standing: ChatState, shown: Sequence[TurnOut]) -> str:
    """The cursor of a client that is shown these turns, which were read after `standing` was, and none made since.

    Of open turns that it is not shown it will be told; of the chat itself too, which it may have read long before.
    """
    cursors = {turn.id: None if turn.status in ENDED else turn.cursor for turn in shown}
    opened: dict[int, Cursor | None] = {}
    for turn, place in standing.open.items():
        if turn not in cursors:
            opened[place] = None
        elif cursor := cursors[turn]:
            opened[place] = Cursor.parse(cursor)
    return str(ChatCursor(standing.last, "", opened))

"""Several chats on one connection: browsers open six to one server at most, whatever number of tabs they show."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from app.api.codec import to_json
from app.api.http.errors import BadRequest
from app.api.services import Services, begin
from app.api.streams.chat import frame, open_reader
from app.api.streams.turn import FrameResponse
from app.domain.errors import NotFound
from app.stream.chat.cursor import ChatCursor

MOST = 100


async def stream_chats(request: Request) -> Response:
    """Each `follow` is a chat, or `chat@cursor`. The same chat may be followed twice, from different places."""
    services, owner = await begin(request)
    asked = [_asked(text) for text in request.query_params.getlist("follow")]
    if not 1 <= len(asked) <= MOST:
        raise BadRequest(f"names 1 to {MOST} chats", field="follow")
    streams = [await _frames(services, owner, chat, cursor) for chat, cursor in asked]
    return FrameResponse(side_by_side(streams), services.http.stream_life, services.http.heartbeat)


async def side_by_side(streams: Sequence[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """What they give as it comes, behind a mark that says whose it is; to the end of the last one."""
    waiting = {asyncio.ensure_future(anext(stream)): place for place, stream in enumerate(streams)}
    marked = -1
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for given in done:
                place = waiting.pop(given)
                if isinstance(given.exception(), StopAsyncIteration):
                    continue
                yield given.result() if place == marked else _mark(place) + given.result()
                marked = place
                waiting[asyncio.ensure_future(anext(streams[place]))] = place
    finally:
        for given in waiting:
            given.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


def _mark(place: int) -> bytes:
    return b'event: following\ndata: {"follow":%d}\n\n' % place


def _asked(text: str) -> tuple[UUID, str]:
    chat, _, cursor = text.partition("@")
    try:
        return UUID(chat), cursor
    except ValueError:
        raise BadRequest(
            "is the id of a chat, or that, @ and the id of an event of its stream", field="follow"
        ) from None


async def _frames(services: Services, owner: str, chat: UUID, cursor: str) -> AsyncGenerator[bytes, None]:
    """Of one chat. What is wrong with it is told in its place, so that the others go on."""
    try:
        parsed = ChatCursor.parse(cursor) if cursor else ChatCursor()
        return (await open_reader(services, owner, chat, parsed)).frames()
    except NotFound:
        return _only(frame(None, None))
    except ValueError as error:
        return _only(b"event: refused\ndata: %b\n\n" % to_json({"detail": str(error)}))


async def _only(told: bytes) -> AsyncGenerator[bytes, None]:
    yield told

"""The SSE endpoint: a response around the one reader."""

from collections.abc import AsyncIterator
from functools import partial

from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from app.api.codec import frame
from app.api.errors import BadRequest
from app.api.services import Services, begin, id_of
from app.domain.cursor import START, Cursor
from app.domain.errors import Conflict
from app.domain.log import end_cursor, resume
from app.domain.turns import Turn
from app.stream.tail import tail
from app.telemetry import STREAMS_OPEN

HEARTBEAT = 15  # seconds
# The first bytes go out at once, so that proxies and clients know the stream is open; and how soon to come back.
HELLO = b"retry: 1000\n\n"
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


async def stream_turn(request: Request) -> Response:
    services, owner = await begin(request)
    chat, turn_id = id_of(request, "chat"), id_of(request, "turn")
    turn = await services.turns.get(owner, chat, turn_id)
    return stream_response(services, owner, turn, _cursor_of(request))


def stream_response(services: Services, owner: str, turn: Turn, cursor: Cursor, status: int = 200) -> Response:
    """The turn's events after `cursor`; 204 when there is nothing left, which stops an EventSource for good."""
    if turn.role == "user":
        raise Conflict("a user turn is complete; there is nothing to stream")
    view = services.directory.view(turn)
    try:
        place, reset = resume(view, cursor)
    except ValueError as error:
        raise BadRequest(str(error), field="Last-Event-ID") from None
    if view.ended and reset is None and place == end_cursor(view):
        return Response(status_code=204, headers=HEADERS)
    load = partial(services.turns.get, owner, turn.chat_id, turn.id)
    frames = _counted(tail(services.directory, view, load, cursor, frame))
    return EventSourceResponse(frames, status, HEADERS, ping=HEARTBEAT)


async def _counted(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    STREAMS_OPEN.inc()
    try:
        yield HELLO
        async for data in frames:
            yield data
    finally:
        STREAMS_OPEN.dec()


def _cursor_of(request: Request) -> Cursor:
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("cursor", request.query_params.get("cursor")),
    ):
        if text:
            try:
                return Cursor.parse(text)
            except ValueError as error:
                raise BadRequest(str(error), field=name) from None
    return START

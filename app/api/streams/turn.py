"""The SSE endpoint: a response around the one reader."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import TypeVar

import anyio
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.api.events import frame
from app.api.http.errors import BadRequest
from app.api.http.reading import id_of
from app.api.services import Services, begin
from app.domain.cursor import START, Cursor
from app.domain.errors import Conflict
from app.domain.turns import Turn
from app.stream.reader import TurnReader
from app.telemetry import STREAMS_OPEN

AnyCursor = TypeVar("AnyCursor")
Start = TypeVar("Start")

# The first bytes go out at once, so that proxies and clients know the stream is open; and how soon to come back.
HELLO = b"retry: 1000\n\n"
FAREWELL = 1.0  # seconds that the end of a stream may take to be sent
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


class FrameResponse(EventSourceResponse):
    """Sends frames that are bytes already. Heartbeats, disconnects and shutdown are the base's."""

    def __init__(
        self, frames: AsyncGenerator[bytes, None], life: float, heartbeat: float, *, cuts: bool = False
    ) -> None:
        """After `life` seconds the stream ends, and the client comes back with its cursor if it still lives. Every
        `heartbeat` seconds it says so meanwhile. One that `cuts` leaves the body unfinished when it is ended before
        its frames are, for clients that take every other end for a good one.
        """
        super().__init__(frames, headers=HEADERS)
        self.ping_interval = heartbeat
        self._frames = frames
        self._cuts = cuts
        self._life = life * random.uniform(0.9, 1.1)  # noqa: S311, only so that not all come back at once

    async def _stream_response(self, send: Send) -> None:
        """The base's loop, without what it does for items that are not bytes: a third of the cost of a frame."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        finished = False
        try:
            with STREAMS_OPEN.track_inprogress(), suppress(TimeoutError):
                async with asyncio.timeout(self._life), aclosing(self._frames) as frames:
                    await send({"type": "http.response.body", "body": HELLO, "more_body": True})
                    async for data in frames:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                    finished = True
        finally:
            with anyio.move_on_after(FAREWELL, shield=True):  # at a shutdown too, but not for a client that is stuck
                async with self._send_lock:
                    self.active = False
                    if finished or not self._cuts:
                        await send({"type": "http.response.body", "body": b"", "more_body": False})


def end_streams() -> None:
    """Ends every open stream of the process, whose clients come back elsewhere with their cursor."""
    AppStatus.should_exit = True


async def stream_turn(request: Request) -> Response:
    services, owner = await begin(request)
    chat, turn_id = id_of(request, "chat"), id_of(request, "turn")
    field, cursor = asked_cursor(request, Cursor.parse, START)
    view = services.live.directory.running_for(owner, chat, turn_id)
    known = view is not None and view.attempt >= cursor.attempt
    turn = view.turn if view and known else await services.storage.turns.get(owner, chat, turn_id)
    return stream_response(services, owner, turn, cursor, field)


def stream_response(
    services: Services, owner: str, turn: Turn, cursor: Cursor = START, field: str = "cursor"
) -> Response:
    """The turn's events after `cursor`; 204 when there is nothing left, which stops an EventSource for good.

    `field` is where the cursor came from.
    """
    if turn.role == "user":
        raise Conflict("A user turn has no stream; name the assistant turn that answers it.")
    directory, view = services.live.directory, services.live.directory.view(turn)
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    reader = TurnReader(directory, view, load, cursor, frame, shares=True)
    try:
        first = reader.look()
    except ValueError as error:
        raise BadRequest(str(error), field=field) from None
    if reader.done and view.ended:
        return Response(status_code=204, headers=HEADERS)
    return FrameResponse(reader.frames(first), services.http.stream_life, services.http.heartbeat)


def asked_cursor(request: Request, parse: Callable[[str], AnyCursor], start: Start) -> tuple[str, AnyCursor | Start]:
    """Where the cursor came from, and the cursor; `start` where there is none. Raises BadRequest."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("cursor", request.query_params.get("cursor")),
    ):
        if text:
            try:
                return name, parse(text)
            except ValueError as error:
                raise BadRequest(str(error), field=name) from None
    return "cursor", start

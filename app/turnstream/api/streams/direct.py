"""The response of the streams of turns: their readers write to the connection past all tasks."""

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstream.api.http.connection import OUTLET, Outlet
from turnstream.api.streams.response import END, HELLO, FrameResponse, OwnerStreams, end_body, headers_of
from turnstream.stream.delivery import Deliveries, Delivery
from turnstream.stream.reader import TurnReader


class TurnResponse(Response):
    """Sends the frames of `reader`, after its `first` frames. If the server offers an `Outlet`, the pass over all
    deliveries writes the frames, and the task of the request only waits for the end. On any other server, a
    `FrameResponse` does the same with its own tasks.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        reader: TurnReader,
        first: bytes,
        deliveries: Deliveries,
        life: float,
        heartbeat: float,
        streams: OwnerStreams,
        *,
        unjoined: bool = False,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(headers_of(heartbeat))
        self._reader = reader
        self._first = first
        self._deliveries = deliveries
        self._life = life
        self._heartbeat = heartbeat
        self._streams = streams
        self._unjoined = unjoined

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = scope.get("extensions", {}).get(OUTLET, {}).get("outlet")
        with self._reader.unjoined() if self._unjoined else nullcontext():
            if outlet is None or scope["method"] == "HEAD":
                frames = self._reader.frames(self._first)
                await FrameResponse(frames, self._life, self._heartbeat, self._streams)(scope, receive, send)
            else:
                await self._deliver(outlet, scope, send)

    async def _deliver(self, outlet: Outlet, scope: Scope, send: Send) -> None:
        delivery = Delivery(self._deliveries, self._reader, outlet)
        life = self._life * random.uniform(0.9, 1.1)  # noqa: S311, as in `FrameResponse`
        stream, is_whole = self._streams.opened(Request(scope), delivery.stop), False
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            with stream:
                first = HELLO + self._first
                del self._first, self.raw_headers  # else they would be kept for as long as the stream lives
                await send({"type": "http.response.body", "body": first, "more_body": True})
                del first
                with _Timers(outlet, self._heartbeat, life, delivery.stop), outlet.used(delivery.wake, delivery.stop):
                    await delivery.run()
            if self._reader.done:
                await send(END)
                is_whole = True
        finally:
            if not is_whole:
                await end_body(send, stream.refusal)


class _Timers:
    """Sends a comment every `pause` seconds, like sse-starlette, and calls `stop` after `life` seconds. A client with
    unread data needs no comment.
    """

    __slots__ = ("_life", "_outlet", "_pause", "_timer")

    def __init__(self, outlet: Outlet, pause: float, life: float, stop: Callable[[], None]) -> None:
        self._outlet = outlet
        self._pause = pause
        self._life = asyncio.get_running_loop().call_later(life, stop)

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._beat)

    def __exit__(self, *_error: object) -> None:
        self._life.cancel()
        self._timer.cancel()

    def _beat(self) -> None:
        if self._outlet.is_writable:
            self._outlet.write(f": ping - {datetime.now(UTC)}\n\n".encode())
        self.__enter__()

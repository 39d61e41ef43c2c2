"""The response that streams a turn. Its reader writes to the connection without a task of its own."""

import asyncio
import random
from contextlib import nullcontext

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstream.api.http.connection import Outlet, outlet_of
from turnstream.api.streams.response import END, HELLO, FrameResponse, Heartbeats, OwnerStreams, end_body, headers_of
from turnstream.stream.delivery import Deliveries, Delivery
from turnstream.stream.reader import TurnReader


class TurnResponse(Response):
    """Sends `first`, the frames that `reader` has already returned, and then its next frames. If the server offers an
    `Outlet`, the pass over all deliveries writes the frames, and the request's task only waits for the end. On any
    other server, a `FrameResponse` does the same with its own tasks.
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
        outlet = outlet_of(scope)
        with self._reader.unjoined() if self._unjoined else nullcontext():
            if outlet is None:
                frames = self._reader.frames(self._first)
                await FrameResponse(frames, self._life, self._heartbeat, self._streams)(scope, receive, send)
            else:
                await self._deliver(outlet, scope, send)

    async def _deliver(self, outlet: Outlet, scope: Scope, send: Send) -> None:
        delivery = Delivery(self._deliveries, self._reader, outlet)
        stream, is_whole = self._streams.opened(Request(scope), delivery.stop), False
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        life = self._life * random.uniform(0.9, 1.1)  # noqa: S311, as in `FrameResponse`
        ending = asyncio.get_running_loop().call_later(life, delivery.stop)
        try:
            with stream:
                first = HELLO + self._first
                del self._first, self.raw_headers  # released now, because the stream may live long
                await send({"type": "http.response.body", "body": first, "more_body": True})
                del first
                with Heartbeats(outlet, self._heartbeat), outlet.used(delivery.wake, delivery.stop):
                    await delivery.run()
            if self._reader.done:
                await send(END)
                is_whole = True
        finally:
            ending.cancel()
            if not is_whole:
                await end_body(send, stream.refusal)

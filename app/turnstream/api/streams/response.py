"""The response of every stream: frames, heartbeats, and an end after which the client can reconnect."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Self

import anyio
from anyio.lowlevel import checkpoint
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from turnstream.api.caller import OwnerPlans
from turnstream.api.codec import to_json
from turnstream.api.http.connection import Outlet, outlet_of
from turnstream.api.http.endpoint import GIVE_BACK
from turnstream.domain.errors import RequestRefused, TooMany
from turnstream.domain.identity import Identity
from turnstream.stream.reader import PORTION
from turnstream.telemetry import STREAMS_OPEN

# The first bytes are sent at once, so that proxies and clients know that the stream is open. After `retry` milliseconds
# a disconnected client reconnects.
HELLO = b"retry: 1000\n\n"
_FRAME_END = b"\n\n"
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_END_TIMEOUT = 1.0  # seconds to send the end of a body, also at a shutdown; a client that does not read misses the end
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def headers_of(heartbeat: float) -> dict[str, str]:
    """Returns the headers of a stream. From `heartbeat` (seconds), a client can detect a dead connection."""
    return {**HEADERS, "Turnstream-Heartbeat": f"{heartbeat:g}"}


class OwnerStreams:
    """The open streams on this replica, and the number of slots that each owner has taken for streams."""

    def __init__(self, plans: OwnerPlans) -> None:
        self._plans = plans
        self._taken: Counter[str] = Counter()
        self._open: set[OpenStream] = set()

    def take(self, request: Request) -> None:
        """Reserves a slot for a stream before any write. The slot is released after the answer. Raises TooMany."""
        owner: str = request.state.identity.person
        most = self._plans.of(owner).streams
        if most is not None and self._taken[owner] >= most:
            raise TooMany(f"The limit of open streams, {most} of an owner, is reached: close one.", 5, "streams")
        self._taken[owner] += 1
        setattr(request.state, GIVE_BACK, partial(self._give_back, owner))

    def _give_back(self, owner: str) -> None:
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]

    def all(self) -> Sequence["OpenStream"]:
        return tuple(self._open)

    def opened(self, request: Request, stop: Callable[[], None]) -> "OpenStream":
        """Returns a context in which `all` has the stream. `stop` interrupts the stream."""
        return OpenStream(request, stop, self._open)


class OpenStream:
    """A stream that is being sent, and the request that it answers."""

    __slots__ = ("_all", "_stop", "identity", "refusal", "request")

    def __init__(self, request: Request, stop: Callable[[], None], all_open: "set[OpenStream]") -> None:
        self.request = request
        self.identity: Identity = request.state.identity
        self.refusal: RequestRefused | None = None
        self._stop = stop
        self._all = all_open

    def __enter__(self) -> Self:
        self._all.add(self)
        STREAMS_OPEN.inc()
        return self

    def __exit__(self, *_error: object) -> None:
        self._all.discard(self)
        STREAMS_OPEN.dec()

    def end(self, refusal: RequestRefused | None) -> None:
        """Stops the stream, because its credential no longer allows it. Without a refusal, the reader may reconnect."""
        self.refusal = refusal
        self._stop()


def access_ended(refusal: RequestRefused) -> bytes:
    """Returns the last frame of a stream with an invalid credential, in the form of this server's own protocol."""
    data = to_json({"status": refusal.status, "detail": refusal.detail})
    return b"event: access_ended\ndata: %b\n\n" % data


async def end_body(
    send: Send, refusal: RequestRefused | None, last_frame: Callable[[RequestRefused], bytes] = access_ended
) -> None:
    """Completes the body of an unfinished stream, even if the caller is cancelled."""
    with anyio.move_on_after(_END_TIMEOUT, shield=True):
        if refusal:
            await send({**END, "body": last_frame(refusal), "more_body": True})
        await send(END)


class Heartbeats:
    """Sends a comment every `pause` seconds, like sse-starlette, if `is_due`. A client with unread data needs none."""

    __slots__ = ("_is_due", "_outlet", "_pause", "_timer")

    def __init__(self, outlet: Outlet, pause: float, is_due: Callable[[], bool] = lambda: True) -> None:
        self._outlet = outlet
        self._pause = pause
        self._is_due = is_due

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._beat)

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        if self._outlet.is_writable and self._is_due():
            self._outlet.write(f": ping - {datetime.now(UTC)}\n\n".encode())
        self.__enter__()


class FrameResponse(EventSourceResponse):
    """Sends encoded frames, whole or in parts. If the server offers an `Outlet`, the task of the request is the only
    task of the stream. On any other server, tasks of sse-starlette send the start and the end of the response and the
    heartbeats, and detect that the client has disconnected or the server shuts down. These tasks take 26 KiB for each
    stream. Within a frame, no heartbeat and no last frame are sent, because they would end the frame for the client.

    This class uses only public parts of sse-starlette: its constructor and `__call__`. The frames bypass sse-starlette,
    which would take 6 µs for each frame.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        life: float,
        heartbeat: float,
        streams: OwnerStreams,
        *,
        last_frame: Callable[[RequestRefused], bytes] = access_ended,
        cuts: bool = False,
        first: bytes = HELLO,
    ) -> None:
        """The stream ends after `life` seconds; a client that still reads then reconnects with its cursor. A heartbeat
        follows every `heartbeat` seconds. With `cuts`, the body stays unfinished if the stream ends before all frames
        are sent, because some clients treat every complete body as a complete answer. `streams` lists the open stream,
        and may stop it when its credential becomes invalid: `last_frame` then completes the body. `first` are the first
        bytes, for clients that do not accept a `retry` alone.
        """
        super().__init__(self._events(), headers=headers_of(heartbeat), ping=heartbeat, sep="\n")
        self._frames = frames
        self._streams = streams
        self._last_frame = last_frame
        self._cuts = cuts
        self._first = first
        self._heartbeat = heartbeat
        self._tail = _FRAME_END
        self._life = life * random.uniform(0.9, 1.1)  # noqa: S311, only so that not all come back at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        outlet, is_open = outlet_of(scope), False

        async def observed_send(message: Message) -> None:
            nonlocal is_open
            if message.get("more_body") and not self._is_between_frames():  # a heartbeat of sse-starlette
                return
            is_open = is_open and message["more_body"]  # the end is not sent again, even if its sending was cancelled
            await send(message)
            is_open = message["type"] == "http.response.start" or message["more_body"]

        life = anyio.move_on_after(self._life)
        stream = self._streams.opened(Request(scope), life.cancel)
        try:
            with stream, life:
                if outlet is None:
                    await super().__call__(scope, receive, observed_send)
                else:
                    await self._send_alone(outlet, observed_send, life.cancel)
        finally:
            if is_open and (stream.refusal or not self._cuts):
                await end_body(send, stream.refusal if self._is_between_frames() else None, self._last_frame)

    async def _send_alone(self, outlet: Outlet, send: Send, stop: Callable[[], None]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with Heartbeats(outlet, self._heartbeat, self._is_between_frames), outlet.used(_do_nothing, stop):
            async with aclosing(self._events()) as events:
                async for first in events:
                    await send({"type": "http.response.body", "body": first, "more_body": True})
        await send(END)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Yields the first bytes as the only event, because nothing may be sent before the start of the response. When
        the caller asks for the next event, this generator sends the frames itself. Afterwards the caller sends the end
        of the body.
        """
        yield self._first
        send, sent = self._send, 0
        async with aclosing(self._frames) as frames:
            async for data in frames:
                self._tail = data[-2:] or self._tail
                await send({"type": "http.response.body", "body": data, "more_body": True})
                # `send` does not wait for a client that reads fast or has disconnected. The checkpoint lets other tasks
                # run, so that the library detects the end of the connection.
                sent += len(data)
                if sent >= PORTION:
                    sent = 0
                    await checkpoint()

    def _is_between_frames(self) -> bool:
        """Whether all sent frames are complete."""
        return self._tail == _FRAME_END


def _do_nothing() -> None:
    """`send` waits until the connection is writable."""

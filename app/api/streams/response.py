"""The response of every stream: frames as they come, heartbeats, and an end that the client can come back from."""

import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager

import anyio
from anyio.lowlevel import checkpoint
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from app.api.plans import OwnerPlans
from app.domain.errors import TooMany
from app.stream.reader import PORTION
from app.telemetry import STREAMS_OPEN

# The first bytes go out at once, so that proxies and clients know that the stream is open. A client reconnects after so
# many milliseconds.
HELLO = b"retry: 1000\n\n"
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_END_TIMEOUT = 1.0  # seconds to send the end of a body, at a shutdown too; a client that is stuck does not get it
_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


class OwnerStreams:
    """The open streams on this replica by owner. A stream that is asked for by itself is refused beyond those of the
    owner's plan.
    """

    def __init__(self, plans: OwnerPlans) -> None:
        self._plans = plans
        self._open: Counter[str] = Counter()

    def check(self, owner: str) -> None:
        """Raises TooMany. Not for the stream of a message, which is written by then."""
        most = self._plans.of(owner).streams
        if most is not None and self._open[owner] >= most:
            raise TooMany(f"There are {most} open streams, the most of an owner: close one.", 5, "streams")

    @contextmanager
    def counted(self, owner: str) -> Iterator[None]:
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


class FrameResponse(EventSourceResponse):
    """Sends frames, which are bytes already. The library sends the start and the end of the response and the
    heartbeats, and notices that the client has disconnected or that the server shuts down.

    Only public parts of the library are used: its constructor and `__call__`. The frames do not pass through it, which
    would cost 6 µs for each.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        life: float,
        heartbeat: float,
        counted: AbstractContextManager[None],
        *,
        cuts: bool = False,
    ) -> None:
        """`counted` is entered while the stream is open. After `life` seconds it ends, and the client comes back with
        its cursor if it still lives. There is a heartbeat every `heartbeat` seconds. With `cuts` the body stays
        unfinished where the stream ends before its frames do, for clients that take every complete body for a complete
        answer.
        """
        super().__init__(self._events(), headers=HEADERS, ping=heartbeat, sep="\n")
        self._frames = frames
        self._counted = counted
        self._cuts = cuts
        self._life = life * random.uniform(0.9, 1.1)  # noqa: S311, only so that not all come back at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        is_open = False

        async def observed_send(message: Message) -> None:
            nonlocal is_open
            is_open = is_open and message["more_body"]  # the end is sent once, also where sending it was cancelled
            await send(message)
            is_open = message["type"] == "http.response.start" or message["more_body"]

        try:
            with self._counted, STREAMS_OPEN.track_inprogress(), anyio.move_on_after(self._life):
                await super().__call__(scope, receive, observed_send)
        finally:
            if is_open and not self._cuts:
                with anyio.move_on_after(_END_TIMEOUT, shield=True):
                    await send(_END)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The library's only event is the first bytes: nothing may be sent before the start of the response. Asked for
        the next event, this sends the frames itself. The end of the body is the library's again.
        """
        yield HELLO
        send, sent = self._send, 0
        async with aclosing(self._frames) as frames:
            async for data in frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                # Sending does not wait for a client that reads fast or has disconnected: other tasks run in between,
                # and the end of the connection is noticed.
                sent += len(data)
                if sent >= PORTION:
                    sent = 0
                    await checkpoint()

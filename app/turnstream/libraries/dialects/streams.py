"""Streams of the dialects: the reader that they share, and a response that ends when the turn ends or waits."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from functools import partial
from math import ceil
from typing import Generic, Protocol, TypeVar

from turnstream.api.services import Services
from turnstream.api.streams.response import HELLO, FrameResponse
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.events import Event, Notice
from turnstream.domain.turns import Turn
from turnstream.kit.clock import CLOCK
from turnstream.storage.database import retry_while_unavailable
from turnstream.stream.live import LiveView
from turnstream.stream.reader import Encode, TurnReader

# Seconds. For these clients the end of the connection is the end of the answer, so the connection must not end earlier.
_LIFE = 30 * 86_400.0


def current_view(services: Services, turn: Turn) -> LiveView:
    """Returns the live view of a turn. The view is at least as new as `turn`, which was read from the rows."""
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may lack the answers to its asks
    return view


class DialectReader(TurnReader):
    """Reads for a client that treats a turn as complete while the turn waits for the client. `waiting` is the turn as
    read from its rows; it is set when the client has received all content.
    """

    def __init__(self, services: Services, owner: str, view: LiveView, encode: Encode, cursor: Cursor = START) -> None:
        load = partial(services.storage.turns.get, owner, view.turn.chat_id, view.turn.id)
        super().__init__(services.live.directory, view, load, cursor, encode)
        self.waiting: Turn | None = None

    async def more(self) -> bool:
        """Waits for more events. Returns False if the turn has ended or waits, and all events have been sent."""
        if self.done:
            return False
        if not self.view.turn.waits_for_person:
            await self.wait()
            return True
        turn = await retry_while_unavailable(self._load)
        if turn.waits_for_person and len(turn.blocks) == len(self.view.turn.blocks):
            self.waiting = turn
            return False
        self.view.adopt(turn, None)
        return True


class PartEncoder(Protocol):
    """Encodes the part of a turn that lies between two waits for the client."""

    @property
    def ended(self) -> bool: ...
    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes: ...
    def begin(self) -> bytes: ...
    def waiting(self) -> bytes: ...


E = TypeVar("E", bound=PartEncoder)


class PartReader(Generic[E]):
    """Reads a part of a turn for one client. `encoder` receives the turn and a function that returns the view."""

    def __init__(
        self,
        services: Services,
        owner: str,
        turn: Turn,
        encoder: Callable[[Turn, Callable[[], LiveView]], E],
        cursor: Cursor = START,
    ) -> None:
        view = current_view(services, turn)
        self.events = encoder(view.turn, lambda: self._reader.view)
        self._reader: DialectReader = DialectReader(services, owner, view, self.events, cursor)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        reader, events = self._reader, self.events
        yield events.begin()
        while True:
            if frames := reader.look():
                yield frames
            elif events.ended or not await reader.more():
                if reader.waiting is not None:
                    yield events.waiting()
                return

    async def end(self) -> None:
        """Reads to the end of the part, and discards the frames."""
        async with aclosing(self.frames()) as frames:
            async for _ in frames:
                pass


def dialect_response(
    services: Services,
    frames: AsyncGenerator[bytes, None],
    access_ended: Callable[[RequestRefused], bytes],
    first: bytes = HELLO,
) -> FrameResponse:
    """Returns the response for a stream. If the credential expires, `access_ended` encodes the last frame."""
    heartbeat, streams = services.http.heartbeat, services.streams
    return FrameResponse(frames, _LIFE, heartbeat, streams, last_frame=access_ended, cuts=True, first=first)


def wait_headers(seconds: float | None, since: datetime | None = None) -> dict[str, str]:
    """Returns the header `Retry-After` with the rest of the wait that a provider requested at `since`. Returns no
    header if there is nothing to wait for.
    """
    left = (seconds or 0.0) - ((CLOCK.now() - since).total_seconds() if since else 0.0)
    return {"Retry-After": str(ceil(left))} if left > 0 else {}

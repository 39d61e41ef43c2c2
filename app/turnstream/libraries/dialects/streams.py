"""Streams of the dialects: the common reader, and a response that ends when the turn ends or waits."""

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
    """The live view of a turn, at least as new as the rows read before."""
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may lack the answers
    return view


class DialectReader(TurnReader):
    """Reads for a client that treats a turn as complete while the turn waits for the client. `waiting` is the turn from
    its rows, after the client has received the whole content.
    """

    def __init__(self, services: Services, owner: str, view: LiveView, encode: Encode, cursor: Cursor = START) -> None:
        load = partial(services.storage.turns.get, owner, view.turn.chat_id, view.turn.id)
        super().__init__(services.live.directory, view, load, cursor, encode)
        self.waiting: Turn | None = None

    async def more(self) -> bool:
        """Waits for more events. Returns False if the turn has ended or waits, and everything is sent."""
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
    """An encoder of the part of a turn between two waits for the client."""

    @property
    def ended(self) -> bool: ...
    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes: ...
    def begin(self) -> bytes: ...
    def waiting(self) -> bytes: ...


E = TypeVar("E", bound=PartEncoder)


class PartReader(Generic[E]):
    """Reads a part of a turn for one client. `encoder` gets the turn, and a function that returns the present view."""

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
        """Returns when the part has ended."""
        async with aclosing(self.frames()) as frames:
            async for _ in frames:
                pass


def dialect_response(
    services: Services,
    frames: AsyncGenerator[bytes, None],
    access_ended: Callable[[RequestRefused], bytes],
    first: bytes = HELLO,
) -> FrameResponse:
    """`access_ended` encodes the last frame of a stream after the end of its credential."""
    heartbeat, streams = services.http.heartbeat, services.streams
    return FrameResponse(frames, _LIFE, heartbeat, streams, last_frame=access_ended, cuts=True, first=first)


def wait_headers(seconds: float | None, since: datetime | None = None) -> dict[str, str]:
    """Returns a header with the rest of a provider's requested wait since `since`. Empty without a wait."""
    left = (seconds or 0.0) - ((CLOCK.now() - since).total_seconds() if since else 0.0)
    return {"Retry-After": str(ceil(left))} if left > 0 else {}

"""Responses as they are read: as a stream, to their end, or as they are now. The reader is the one of all streams."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from turnstream.api.codec import to_json
from turnstream.api.dialects.streams import DialectReader, current_view, dialect_response
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.cursor import Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.events import Event, Notice
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.errors import error_json
from turnstream.extensions.openai_api.events import ResponseEvents
from turnstream.extensions.openai_api.objects import Json
from turnstream.kit.offload import Portions

# The SDKs parse every frame with a field as an event with JSON, so the first bytes are a comment.
FIRST = b": \n\n"


class PartEncoder(Protocol):
    @property
    def ended(self) -> bool: ...
    def __call__(self, event: Event | Notice, cursor: Cursor | None) -> bytes: ...
    def begin(self) -> bytes: ...
    def waiting(self) -> bytes: ...


E = TypeVar("E", bound=PartEncoder)


class PartReader(Generic[E]):
    """Reads a part of a turn for one client. `encoder` gets the turn, and what returns it as its rows are now."""

    def __init__(
        self, services: Services, owner: str, turn: Turn, encoder: Callable[[Turn, Callable[[], Turn]], E]
    ) -> None:
        view = current_view(services, turn)
        self.events = encoder(view.turn, lambda: self._reader.view.turn)
        self._reader: DialectReader = DialectReader(services, owner, view, self.events)

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
        """Returns once the part has ended."""
        async with aclosing(self.frames()) as frames:
            async for _ in frames:
                pass


def response_reader(
    services: Services, owner: str, turn: Turn, part: int, after: int = -1, previous: str | None = None
) -> PartReader[ResponseEvents]:
    """Reads a response from the event behind number `after`."""
    return PartReader(services, owner, turn, lambda turn, now: ResponseEvents(turn, part, after, previous, now))


async def response_now(services: Services, turn: Turn, part: int, previous: str | None = None) -> Json:
    """The response as it is now. Others get their turn on the event loop."""
    view = current_view(services, turn)
    events = ResponseEvents(view.turn, part, previous=previous)
    marks, block, portions = view.marks.copy(), view.block_being_written(), Portions()  # as of one moment
    for mark in marks:
        for _ in events.take(mark):
            pass
        await portions.pause()
    return events.response(block)


def event_stream(services: Services, frames: AsyncGenerator[bytes, None]) -> FrameResponse:
    return dialect_response(services, frames, _access_ended, FIRST)


def _access_ended(refusal: RequestRefused) -> bytes:
    """The SDKs raise the error."""
    return b"event: error\ndata: %b\n\n" % to_json(error_json(refusal))

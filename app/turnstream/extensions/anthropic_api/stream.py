"""Messages as they are read: as a stream, or to their end. The reader is that of every stream."""

from collections.abc import AsyncGenerator

from turnstream.api.codec import to_json
from turnstream.api.dialects.streams import PartReader, dialect_response
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.anthropic_api.errors import error_json, text_of, type_of
from turnstream.extensions.anthropic_api.events import EventPlace, MessageEvents

# The SDKs parse every frame with a field as an event with JSON, so the first bytes are a comment.
_FIRST = b": \n\n"


def reader(
    services: Services, owner: str, turn: Turn, part: int, after: EventPlace | None = None
) -> PartReader[MessageEvents]:
    """Without a place `after`, for the message alone."""
    place = after or EventPlace()
    return PartReader(services, owner, turn, lambda turn, view: MessageEvents(turn, part, view, after), place.cursor)


def event_stream(services: Services, owner: str, turn: Turn, part: int, after: EventPlace) -> FrameResponse:
    """A message whose events behind the place are not those that were sent begins again."""

    async def frames() -> AsyncGenerator[bytes, None]:
        for place in (after, EventPlace()):
            read = reader(services, owner, turn, part, place)
            async for frame in read.frames():
                yield frame
            if not read.events.is_void:
                return

    return dialect_response(services, frames(), _access_ended, _FIRST)


def _access_ended(refusal: RequestRefused) -> bytes:
    """The SDKs raise the error."""
    return b"event: error\ndata: %b\n\n" % to_json(error_json(type_of(refusal), text_of(refusal)))

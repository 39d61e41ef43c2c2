"""Sends messages as streams or as complete values. Both use the reader that all dialects share."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from turnstream.api.codec import to_json
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.anthropic_api.errors import error_json, text_of, type_of
from turnstream.extensions.anthropic_api.events import EventPlace, MessageEvents
from turnstream.libraries.dialects.streams import PartReader, dialect_response
from turnstream.libraries.dialects.unstored import Forgetting, delivered
from turnstream.stream.live import LiveView

# The SDKs parse as JSON every frame that contains a field. So the stream begins with a comment, which is no field.
_FIRST = b": \n\n"


def message_reader(services: Services, owner: str, turn: Turn, part: int) -> PartReader[MessageEvents]:
    """Returns a reader for the complete message."""
    return PartReader(services, owner, turn, lambda turn, view: MessageEvents(turn, part, view))


def event_stream(
    services: Services,
    owner: str,
    turn: Turn,
    part: int,
    after: EventPlace,
    forget: Forgetting | None = None,
    *,
    is_resumed: bool,
) -> FrameResponse:
    """Returns the stream of a message. If the part that a client already has becomes void, a resumed message begins
    again. `forget` runs after the message is delivered.
    """
    place = after

    def events(turn: Turn, view: Callable[[], LiveView]) -> MessageEvents:
        return MessageEvents(turn, part, view, place, is_resumed=is_resumed)

    async def frames() -> AsyncGenerator[bytes, None]:
        nonlocal place
        while True:
            read = PartReader(services, owner, turn, events, place.cursor)
            async with aclosing(read.frames()) as sent:
                async for frame in sent:
                    yield frame
            if not read.events.is_void:
                return
            place = EventPlace()

    return dialect_response(services, delivered(frames(), forget), _access_ended, _FIRST)


def _access_ended(refusal: RequestRefused) -> bytes:
    """Ends the stream with an error that the SDKs raise."""
    return b"event: error\ndata: %b\n\n" % to_json(error_json(type_of(refusal), text_of(refusal)))

"""Reads responses: as a stream, to their end, or in their current state. All streams use the same reader."""

from collections.abc import AsyncGenerator, Mapping

from turnstream.api.codec import to_json
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.errors import error_json
from turnstream.extensions.openai_api.events import ResponseEvents
from turnstream.extensions.openai_api.objects import Json
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.streams import PartReader, current_view, dialect_response

# The SDKs parse every frame that contains a field as a JSON event, so the first bytes are a comment.
FIRST = b": \n\n"


def response_reader(
    services: Services,
    owner: str,
    turn: Turn,
    part: int,
    after: int = -1,
    previous: str | None = None,
    *,
    stored: bool = True,
) -> PartReader[ResponseEvents]:
    """Returns a reader of a response, which starts with the event after the number `after`."""
    return PartReader(
        services,
        owner,
        turn,
        lambda turn, view: ResponseEvents(turn, part, after, previous, lambda: view().turn, stored=stored),
    )


async def response_now(services: Services, turn: Turn, part: int, previous: str | None = None) -> Json:
    """Returns the response in its current state. It pauses between portions, so that the event loop can run other
    tasks.
    """
    view = current_view(services, turn)
    events = ResponseEvents(view.turn, part, previous=previous)
    # Both are read without a pause, so they match.
    marks, block, portions = view.marks.copy(), view.block_being_written(), Portions()
    for mark in marks:
        for _ in events.take(mark):
            pass
        await portions.pause()
    return events.response(block)


def event_stream(
    services: Services, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> FrameResponse:
    response = dialect_response(services, frames, _access_ended, FIRST)
    response.headers.update(headers or {})
    return response


def _access_ended(refusal: RequestRefused) -> bytes:
    """Encodes a refusal as the event that the SDKs raise as an error."""
    return b"event: error\ndata: %b\n\n" % to_json(error_json(refusal))

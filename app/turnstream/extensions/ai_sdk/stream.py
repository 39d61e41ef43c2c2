"""Streams a turn as UI messages, with the reader that all dialects share and the encoder for the AI SDK."""

from collections.abc import AsyncGenerator, Collection

from turnstream.api.codec import to_json
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.events import ActionRequired
from turnstream.domain.log import end_cursor
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.chunks import UiEncoder
from turnstream.extensions.ai_sdk.counted import CountedEncoder
from turnstream.libraries.dialects.streams import DialectReader, current_view, dialect_response
from turnstream.stream.live import LiveView

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}


def ui_stream(services: Services, owner: str, turn: Turn, known: Collection[str] | None = None) -> FrameResponse:
    """Streams the turn from its beginning. If the client already has the turn up to the last wait, streams only the
    rest; `known` are then the ids of the client's calls.
    """
    view = current_view(services, turn)
    return _response(services, turn, _frames(services, owner, view, _cursor_of(view, known)))


def counted_stream(
    services: Services,
    owner: str,
    turn: Turn,
    known: Collection[str] | None = None,
    place: int = 0,
    start: int = 0,
) -> FrameResponse:
    """Streams as `ui_stream` does, but begins with the chunk `start` of a stream that began at `place` of the log. A
    negative `start` selects the beginning, because the client needs all chunks to build the parts of a message.
    """
    view = current_view(services, turn)
    cursor = Cursor(view.attempt, place) if place else _cursor_of(view, known)
    response = _response(services, turn, _frames(services, owner, view, cursor, max(start, 0)))
    response.headers["x-workflow-run-id"] = f"{turn.chat_id}.{turn.id}.{cursor.place}"
    if start < 0:  # the client computes the number of its first chunk, which is 0, from this header
        response.headers["x-workflow-stream-tail-index"] = str(-start - 1)
    return response


async def _frames(
    services: Services, owner: str, view: LiveView, cursor: Cursor, skip: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Yields the frames of a stream. If `skip` is set, chunks are counted and the first `skip` chunks are omitted."""
    encoder = UiEncoder(view.turn, lambda: reader.view.turn)
    before = view.marks[cursor.place - 1].attempt if 0 < cursor.place <= len(view.marks) else 0
    counted = None if skip is None else CountedEncoder(encoder, skip, before, lambda: reader.view.turn)
    reader = DialectReader(services, owner, view, counted or encoder, cursor)

    def passed(frames: bytes) -> bytes:
        return frames if counted is None else counted.passed(frames)

    if cursor != START:
        yield passed(encoder.resumed(view.marks[: cursor.place]))
    while True:
        found = reader.look()
        if counted is not None and counted.is_lost:
            yield counted.lost()
            return
        if found:
            yield found
        elif not await reader.more():
            if reader.waiting is not None:
                yield passed(encoder.waiting())
            return


def _response(services: Services, turn: Turn, frames: AsyncGenerator[bytes, None]) -> FrameResponse:
    response = dialect_response(services, frames, _access_ended)
    # Assistant-ui resumes with this value, and the value may be any id of the chat.
    response.headers.update({**HEADERS, "x-resumable-stream-id": str(turn.chat_id)})
    return response


def _access_ended(refusal: RequestRefused) -> bytes:
    """Ends the stream with an error that the SDK reports. To resume, the client needs a new credential."""
    return b"data: %b\n\n" % to_json({"type": "error", "errorText": refusal.detail})


def _cursor_of(view: LiveView, known: Collection[str] | None) -> Cursor:
    """Returns the beginning, or the cursor after the last wait whose calls the client has. The client may receive known
    results a second time.
    """
    if known is None:
        return START
    for place, mark in reversed(list(view.marks.places_of(ActionRequired))):
        if all(action.tool_use_id in known for action in mark.actions):
            return Cursor(view.attempt, place + 1)
    return Cursor(view.attempt, len(view.marks) - 1) if view.ended else end_cursor(view)

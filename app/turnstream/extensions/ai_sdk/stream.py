"""The UI message stream of a turn: the reader of every stream, with the SDK's encoder."""

from collections.abc import AsyncGenerator, Collection

from turnstream.api.codec import to_json
from turnstream.api.dialects.streams import DialectReader, current_view, dialect_response
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.events import ActionRequired
from turnstream.domain.log import end_cursor
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.chunks import UiEncoder
from turnstream.stream.live import LiveView

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}


def ui_stream(services: Services, owner: str, turn: Turn, known: Collection[str] | None = None) -> FrameResponse:
    """Streams the turn from its beginning, or from the place where it waited last for a client that has the turn until
    there. `known` are the calls that such a client has.
    """
    view = current_view(services, turn)
    cursor = START if known is None else _cursor_after_wait(view, known)

    async def frames() -> AsyncGenerator[bytes, None]:
        encoder = UiEncoder(view.turn, lambda: reader.view.turn)
        reader = DialectReader(services, owner, view, encoder, cursor)
        if cursor != START:
            yield encoder.resumed(view.marks[: cursor.place])
        while True:
            if found := reader.look():
                yield found
            elif not await reader.more():
                if reader.waiting is not None:
                    yield encoder.waiting()
                return

    response = dialect_response(services, frames(), _access_ended)
    # What assistant-ui keeps to resume with, by any id that leads to the chat.
    response.headers.update({**HEADERS, "x-resumable-stream-id": str(turn.chat_id)})
    return response


def _access_ended(refusal: RequestRefused) -> bytes:
    """The SDK reports the error; what the client resumes with needs a new credential."""
    return b"data: %b\n\n" % to_json({"type": "error", "errorText": refusal.detail})


def _cursor_after_wait(view: LiveView, known: Collection[str]) -> Cursor:
    """The cursor behind the last wait of which the client has all calls. Results that it has may be sent once more."""
    for place, mark in reversed(list(view.marks.places_of(ActionRequired))):
        if all(action.tool_use_id in known for action in mark.actions):
            return Cursor(view.attempt, place + 1)
    return Cursor(view.attempt, len(view.marks) - 1) if view.ended else end_cursor(view)

"""The UI message stream of a turn: the reader of every stream, with the SDK's encoder."""

from collections.abc import AsyncGenerator, Collection
from functools import partial

from app.api.ai_sdk.chunks import UiEncoder
from app.api.codec import to_json
from app.api.services import Services
from app.api.streams.response import FrameResponse
from app.domain.cursor import START, Cursor
from app.domain.errors import RequestRefused
from app.domain.events import ActionRequired
from app.domain.log import end_cursor
from app.domain.turns import Turn
from app.storage.database import retry_while_unavailable
from app.stream.live import LiveView
from app.stream.reader import Load, TurnReader

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
# Seconds. The SDK takes the end of a connection for the end of the answer, so it must not end before.
_LIFE = 30 * 86_400.0


def ui_stream(services: Services, owner: str, turn: Turn, known: Collection[str] | None = None) -> FrameResponse:
    """Streams the turn from its beginning, or from the place where it waited last for a client that has the turn until
    there. `known` are the calls that such a client has.
    """
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may not have the answers yet
    cursor = START if known is None else _cursor_after_wait(view, known)
    response = FrameResponse(
        _frames(services, view, load, cursor),
        _LIFE,
        services.http.heartbeat,
        services.streams,
        last_frame=_access_ended,
        cuts=True,
    )
    # What assistant-ui keeps to resume with, by any id that leads to the chat.
    response.headers.update({**HEADERS, "x-resumable-stream-id": str(turn.chat_id)})
    return response


def _access_ended(refusal: RequestRefused) -> bytes:
    """The SDK reports the error; what the client resumes with needs a new credential."""
    return b"data: %b\n\n" % to_json({"type": "error", "errorText": refusal.detail})


def _cursor_after_wait(view: LiveView, known: Collection[str]) -> Cursor:
    """The cursor behind the last wait of which the client has all calls. Results that it has may be sent once more."""
    for place, mark in reversed(list(enumerate(view.marks, 1))):
        if isinstance(mark, ActionRequired) and all(action.tool_use_id in known for action in mark.actions):
            return Cursor(view.attempt, place)
    return Cursor(view.attempt, len(view.marks) - 1) if view.ended else end_cursor(view)


async def _frames(services: Services, view: LiveView, load: Load, cursor: Cursor) -> AsyncGenerator[bytes, None]:
    encoder = UiEncoder(view.turn, lambda: follower.view.turn)
    follower = TurnReader(services.live.directory, view, load, cursor, encoder)
    if cursor != START:
        yield encoder.resumed()
    while True:
        if frames := follower.look():
            yield frames
        elif follower.done:
            return
        elif follower.view.turn.status == "waiting":
            turn = await retry_while_unavailable(load)
            if turn.status == "waiting" and len(turn.blocks) == len(follower.view.turn.blocks):
                yield encoder.waiting()
                return
            follower.view.adopt(turn, None)
        else:
            await follower.wait()

"""The UI message stream of a turn: the one reader of turns, with the SDK's words for what it finds."""

from collections.abc import AsyncGenerator, Collection
from functools import partial

from app.api.ai_sdk.chunks import UiEncoder
from app.api.services import Services
from app.api.streams.turn import FrameResponse
from app.domain.cursor import START, Cursor
from app.domain.events import ActionRequired
from app.domain.log import end_cursor
from app.domain.turns import Turn
from app.storage.database import retry_while_unavailable
from app.stream.live import LiveView
from app.stream.reader import Load, TurnReader

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
# The SDK takes the end of a connection for the end of the answer, so none is ended before it.
_LIFE = 30 * 86_400.0


def ui_stream(services: Services, owner: str, turn: Turn, known: Collection[str] | None = None) -> FrameResponse:
    """The turn from its beginning; or on from where it waited last, for a client that has it until there: `known` are
    the calls it knows.
    """
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # a mirror of what waits is slow to see that somebody has answered
    cursor = START if known is None else _behind_what_waited(view, known)
    response = FrameResponse(_frames(services, view, load, cursor), _LIFE, services.http.heartbeat, cuts=True)
    response.headers.update(HEADERS)
    return response


def _behind_what_waited(view: LiveView, known: Collection[str]) -> Cursor:
    """What follows, results of calls, may come twice: the second time it changes nothing."""
    for place, mark in reversed(list(enumerate(view.marks, 1))):
        if isinstance(mark, ActionRequired) and all(wanted.tool_use_id in known for wanted in mark.actions):
            return Cursor(view.attempt, place)
    return Cursor(view.attempt, len(view.marks) - 1) if view.ended else end_cursor(view)


async def _frames(services: Services, view: LiveView, load: Load, cursor: Cursor) -> AsyncGenerator[bytes, None]:
    encoder = UiEncoder(view.turn, lambda: follower.view.turn.asks)
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

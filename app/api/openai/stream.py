"""Responses as they are read: as a stream, to their end, or as they are now. The reader is that of every stream."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from app.api.codec import to_json
from app.api.openai.errors import error_json
from app.api.openai.events import ResponseEvents
from app.api.openai.objects import Json
from app.api.services import Services
from app.api.streams.response import FrameResponse
from app.domain.cursor import START
from app.domain.errors import RequestRefused
from app.domain.turns import Turn
from app.storage.database import retry_while_unavailable
from app.stream.live import LiveView
from app.stream.reader import TurnReader

# The SDKs parse every frame with a field as an event with JSON, so the first bytes are a comment.
FIRST = b": \n\n"
# Seconds. The SDKs take the end of a connection for the end of the answer, so it must not end before.
LIFE = 30 * 86_400.0


class ResponseReader:
    """Reads one response of the turn for one client, from the event after number `after`."""

    def __init__(
        self,
        services: Services,
        owner: str,
        turn: Turn,
        part: int,
        after: int = -1,
        previous: str | None = None,
        encoder: Callable[..., ResponseEvents] = ResponseEvents,
    ) -> None:
        self._load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
        view = view_of(services, turn)
        self.events = encoder(view.turn, part, after, previous, self._rows)
        self._follower: TurnReader = TurnReader(services.live.directory, view, self._load, START, self.events)

    def _rows(self) -> Turn:
        return self._follower.view.turn

    async def frames(self) -> AsyncGenerator[bytes, None]:
        follower, events = self._follower, self.events
        yield events.begin()
        while True:
            if frames := follower.look():
                yield frames
            elif events.ended or follower.done:
                return
            elif follower.view.turn.status == "waiting":
                turn = await retry_while_unavailable(self._load)
                if turn.status == "waiting" and len(turn.blocks) == len(follower.view.turn.blocks):
                    yield events.waiting()
                    return
                follower.view.adopt(turn, None)
            else:
                await follower.wait()

    async def ended(self) -> Json:
        """The response once it has ended."""
        async with aclosing(self.frames()) as frames:
            async for _ in frames:
                pass
        return self.events.response()


def view_of(services: Services, turn: Turn) -> LiveView:
    """The live view of a turn, which is not behind the rows that were just read."""
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may not have the answers yet
    return view


def response_now(services: Services, turn: Turn, part: int, previous: str | None = None) -> Json:
    """The response as it is now."""
    view = view_of(services, turn)
    events = ResponseEvents(view.turn, part, previous=previous)
    for mark in view.marks:
        for _ in events.take(mark):
            pass
    return events.response(view.block_being_written())


def event_stream(services: Services, frames: AsyncGenerator[bytes, None]) -> FrameResponse:
    return FrameResponse(
        frames,
        LIFE,
        services.http.heartbeat,
        services.streams,
        last_frame=access_ended,
        cuts=True,
        first=FIRST,
    )


def access_ended(refusal: RequestRefused) -> bytes:
    """The SDKs raise the error."""
    return b"event: error\ndata: %b\n\n" % to_json(error_json(refusal))

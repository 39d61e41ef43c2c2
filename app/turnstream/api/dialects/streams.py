"""Streams of the dialects: the reader of every stream, and a response that ends where the turn ends or waits."""

from collections.abc import AsyncGenerator, Callable
from functools import partial

from turnstream.api.services import Services
from turnstream.api.streams.response import HELLO, FrameResponse
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.storage.database import retry_while_unavailable
from turnstream.stream.live import LiveView
from turnstream.stream.reader import Encode, TurnReader

# Seconds. These clients take the end of a connection for the end of the answer, so it must not end before.
_LIFE = 30 * 86_400.0


def current_view(services: Services, turn: Turn) -> LiveView:
    """The live view of a turn, which is not behind the rows that were just read."""
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may not have the answers yet
    return view


class DialectReader(TurnReader):
    """Reads for a client to which a turn that waits for it is a complete answer. `waiting` is that turn as its rows
    are, once the client has all of it.
    """

    def __init__(self, services: Services, owner: str, view: LiveView, encode: Encode, cursor: Cursor = START) -> None:
        load = partial(services.storage.turns.get, owner, view.turn.chat_id, view.turn.id)
        super().__init__(services.live.directory, view, load, cursor, encode)
        self.waiting: Turn | None = None

    async def more(self) -> bool:
        """Waits until there may be more. False if the turn has ended or waits, and nothing is left to send."""
        if self.done:
            return False
        if self.view.turn.status != "waiting":
            await self.wait()
            return True
        turn = await retry_while_unavailable(self._load)
        if turn.status == "waiting" and len(turn.blocks) == len(self.view.turn.blocks):
            self.waiting = turn
            return False
        self.view.adopt(turn, None)
        return True


def dialect_response(
    services: Services,
    frames: AsyncGenerator[bytes, None],
    access_ended: Callable[[RequestRefused], bytes],
    first: bytes = HELLO,
) -> FrameResponse:
    """`access_ended` encodes the last frame of a stream whose credential has ended."""
    heartbeat, streams = services.http.heartbeat, services.streams
    return FrameResponse(frames, _LIFE, heartbeat, streams, last_frame=access_ended, cuts=True, first=first)

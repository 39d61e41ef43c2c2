"""The stream of a run: the reader of every stream, with the encoder of AG-UI."""

from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial

from app.api.ag_ui.encoder import Run, RunEncoder
from app.api.ag_ui.messages import ids_of_client, thread_messages
from app.api.ag_ui.schemas import AgUiMessageIn
from app.api.codec import to_json
from app.api.services import Services
from app.api.streams.response import FrameResponse
from app.domain.cursor import START
from app.domain.errors import RequestRefused
from app.domain.turns import Turn
from app.storage.database import retry_while_unavailable
from app.stream.reader import TurnReader

# Seconds. A client takes the end of a connection for the end of the run, so it must not end before.
LIFE = 30 * 86_400.0


def run_stream(
    services: Services,
    owner: str,
    turn: Turn,
    run: Run,
    messages: Sequence[AgUiMessageIn],
    uploads: str,
    *,
    continues: bool,
    answered: Collection[str] = (),
) -> FrameResponse:
    """Streams the turn as a run. One that `continues` a turn begins with all messages of the thread. `messages` are
    those that the client has, `answered` the interrupts that it has just answered. Uploads are found at `uploads`.
    """
    assert turn.parent_id is not None  # it answers a message
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    path = partial(services.storage.turns.path, owner, turn.chat_id, turn.parent_id)
    view = services.live.directory.view(turn)
    if services.live.directory.running(turn.id) is not view:
        view.adopt(turn, None)  # the mirror of a waiting turn may not have the answers yet

    async def frames() -> AsyncGenerator[bytes, None]:
        encoder = RunEncoder(turn, run, lambda: follower.view.turn, collects=continues, answered=answered)
        follower = TurnReader(services.live.directory, view, load, START, encoder)
        yield encoder.started()
        while not encoder.finished:
            if found := follower.look():
                yield found
            if encoder.collects:
                before = await retry_while_unavailable(path)
                ids = ids_of_client(before, messages)
                yield encoder.snapshot(thread_messages(before, uploads, ids), ids)
            elif found:
                continue
            elif follower.done:
                return
            elif follower.view.turn.status == "waiting":
                now = await retry_while_unavailable(load)
                if now.status == "waiting" and len(now.blocks) == len(follower.view.turn.blocks):
                    yield encoder.waiting(now)
                    return
                follower.view.adopt(now, None)
            else:
                await follower.wait()

    return response(services, frames())


def response(services: Services, frames: AsyncGenerator[bytes, None]) -> FrameResponse:
    http = services.http
    return FrameResponse(frames, LIFE, http.heartbeat, services.streams, last_frame=_access_ended, cuts=True)


def _access_ended(refusal: RequestRefused) -> bytes:
    """The client reports the error; what it connects with again needs a new credential."""
    return b"data: %b\n\n" % to_json({"type": "RUN_ERROR", "message": refusal.detail, "code": "access_ended"})

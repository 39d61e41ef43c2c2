"""Streams a turn as a run, with the reader that all dialects share and the encoder of AG-UI."""

from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial

from turnstream.api.codec import to_json
from turnstream.api.services import Services
from turnstream.api.streams.response import FrameResponse
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.ag_ui.encoder import Run, RunEncoder
from turnstream.extensions.ag_ui.messages import ids_of_client, thread_messages
from turnstream.extensions.ag_ui.schemas import AgUiMessageIn
from turnstream.libraries.dialects.streams import DialectReader, current_view, dialect_response
from turnstream.storage.database import retry_while_unavailable


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
    """Streams the turn as a run. A run that `continues` a turn begins with all messages of the thread. `messages` are
    the client's messages, and `answered` are the interrupts that were just answered. The URL of an upload is `uploads`
    followed by the upload's id.
    """
    assert turn.parent_id is not None  # the turn answers a message
    path = partial(services.storage.turns.path, owner, turn.chat_id, turn.parent_id)
    view = current_view(services, turn)

    async def frames() -> AsyncGenerator[bytes, None]:
        encoder = RunEncoder(turn, run, lambda: reader.view.turn, collects=continues, answered=answered)
        reader = DialectReader(services, owner, view, encoder)
        yield encoder.started()
        while not encoder.finished:
            if found := reader.look():
                yield found
            if encoder.collects:
                before = await retry_while_unavailable(path)
                ids = ids_of_client(before, messages)
                yield await encoder.snapshot(await thread_messages(before, uploads, ids), ids)
            elif not found and not await reader.more():
                if reader.waiting is not None:
                    yield encoder.waiting(reader.waiting)
                return

    return response(services, frames())


def response(services: Services, frames: AsyncGenerator[bytes, None]) -> FrameResponse:
    return dialect_response(services, frames, _access_ended)


def _access_ended(refusal: RequestRefused) -> bytes:
    """Ends the run with an error that the client reports. The client's next connection needs a new credential."""
    return b"data: %b\n\n" % to_json({"type": "RUN_ERROR", "message": refusal.detail, "code": "access_ended"})

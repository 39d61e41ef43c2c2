"""The stream of a turn: the SSE endpoint around the reader of turns."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.events import frame
from turnstream.api.http.errors import BadRequest
from turnstream.api.http.reading import flag_of, frames_of, id_of
from turnstream.api.neighbours import is_from_neighbour
from turnstream.api.reads import ReadStorage
from turnstream.api.services import Services, services_and_owner, services_of
from turnstream.api.streams.direct import TurnResponse
from turnstream.api.streams.response import HEADERS
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import Conflict
from turnstream.domain.turns import Turn
from turnstream.stream.reader import TurnReader

AnyCursor = TypeVar("AnyCursor")
Start = TypeVar("Start")


async def stream_turn(request: Request) -> Response:
    services, owner = services_and_owner(request)
    services.streams.take(request)
    chat, turn_id = id_of(request, "chat"), id_of(request, "turn")
    cursor = requested_cursor(request, Cursor.parse, START)[1]
    view = services.live.directory.running_for(owner, chat, turn_id)
    known = view is not None and view.has_had(cursor.attempt)

    async def read(storage: ReadStorage) -> Turn:
        turn = await storage.turns.get(owner, chat, turn_id)
        storage.finished(turn)
        return turn

    turn = view.turn if view and known else await services.reads.read(request, read)
    if answer := await passed_on(request, turn):
        return answer
    caught_up, unjoined = flag_of(request, "caught_up"), frames_of(request) == "never"
    return stream_response(services, owner, turn, cursor, caught_up=caught_up, unjoined=unjoined)


async def passed_on(request: Request, turn: Turn) -> Response | None:
    """Returns the answer of another process of this server if that process runs the turn, else None. The turn's live
    text then needs no write of the journal, and no wait for the journal.
    """
    services = services_of(request)
    neighbours, status = services.neighbours, turn.status
    if neighbours is None or status != "running" or is_from_neighbour(request):
        return None
    if services.live.directory.running(turn.id) is not None:
        return None
    return await neighbours.pass_on(request, await services.storage.turns.replica_of(turn.id))


def stream_response(
    services: Services,
    owner: str,
    turn: Turn,
    cursor: Cursor = START,
    *,
    caught_up: bool = False,
    unjoined: bool = False,
) -> Response:
    """Streams the turn's events after `cursor`, or answers 204 if nothing will follow, so that an EventSource stops."""
    if turn.role == "user":
        raise Conflict("A user turn has no stream; name the assistant turn that answers it.")
    directory, view = services.live.directory, services.live.directory.view(turn)
    load = partial(services.storage.turns.get, owner, turn.chat_id, turn.id)
    reader = TurnReader(directory, view, load, cursor, frame, shares=True, caught_up=caught_up)
    first = reader.look()
    if reader.done and view.ended:
        return Response(status_code=204, headers=HEADERS)
    http, live = services.http, services.live
    return TurnResponse(
        reader, first, live.deliveries, http.stream_life, http.heartbeat, services.streams, unjoined=unjoined
    )


def requested_cursor(
    request: Request, parse: Callable[[str], AnyCursor], start: Start
) -> tuple[str, AnyCursor | Start]:
    """Returns the field of the cursor, and the cursor, or `start` if the request has no cursor. Raises BadRequest."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("cursor", request.query_params.get("cursor")),
    ):
        if text:
            try:
                return name, parse(text)
            except ValueError as error:
                raise BadRequest(str(error), field=name, code="unknown_cursor") from None
    return "cursor", start

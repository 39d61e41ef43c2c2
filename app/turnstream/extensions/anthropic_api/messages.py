"""Handles requests that create a message."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.errors import BadRequest
from turnstream.api.http.reading import idempotency_key_of, read_body
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.api.streams.turn import requested_cursor
from turnstream.domain.errors import NotFound
from turnstream.domain.turns import Turn
from turnstream.extensions.anthropic_api.errors import ThreadRefused, failure
from turnstream.extensions.anthropic_api.events import EventPlace, MessageId
from turnstream.extensions.anthropic_api.inputs import input_of, options_of
from turnstream.extensions.anthropic_api.posting import MessagePosting
from turnstream.extensions.anthropic_api.schemas import MessagesIn
from turnstream.extensions.anthropic_api.stream import event_stream, message_reader
from turnstream.libraries.dialects.histories import HistoryPlace
from turnstream.libraries.dialects.unstored import Forgetting

RESUME, IGNORED = "Turnstream-Resume", "Turnstream-Ignored"


async def create_message(request: Request) -> Response:
    """Posts the last message after its history, or stores the results of waiting calls. Returns the message or its
    stream. If the request has the `Turnstream-Resume` header of an earlier response, resumes that response after the
    last event that the client received.
    """
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, MessagesIn)
    after = requested_cursor(request, EventPlace.parse, EventPlace())[1]
    if sent.stream:
        services.streams.take(request)
    ignored: list[str] = []
    resumed = request.headers.get(RESUME)
    if resumed is not None:
        turn, part = await _resumed(request, services, resumed)
    else:
        identity_of(request).require_reach(None)
        place = await _continued(request, services, sent)
        continues = place is not None
        options = options_of(services, sent, betas="anthropic-beta" in request.headers, continues=continues)
        ignored += options.ignored
        key = idempotency_key_of(request, body)
        input = await input_of(sent.messages, continues=continues)
        posting = MessagePosting(services, identity_of(request), options, input, key, stores=_stores(services, sent))
        turn, part = await posting.respond(place)
    forget = None if _stores(services, sent) else Forgetting(services, owner, turn, keeps_chat=False)
    if sent.stream:
        is_resumed = resumed is not None or after != EventPlace()
        response: Response = event_stream(services, owner, turn, part, after, forget, is_resumed=is_resumed)
    else:
        read = message_reader(services, owner, turn, part)
        await read.end()
        if forget is not None:
            await forget()
        if read.events.failure is not None:
            ended = read.events.turn
            response = failure(
                request, read.events.failure, ended.error.retry_after if ended.error else None, ended.ended_at
            )
        else:
            response = Response(to_json(read.events.message()), media_type="application/json")
    response.headers[RESUME] = str(MessageId(turn.chat_id, turn.id, part))
    response.headers["request-id"] = request.state.request_id
    if ignored:
        response.headers[IGNORED] = ", ".join(ignored)
    return response


def _stores(services: Services, sent: MessagesIn) -> bool:
    """Whether the message is stored. The operator's setting for the model decides, but messages of a named thread are
    always stored.
    """
    return sent.thread is not None or services.resolver.models.check(sent.model).stores


async def _continued(request: Request, services: Services, sent: MessagesIn) -> HistoryPlace | None:
    """Returns the answer that a thread continues. Raises ThreadRefused if there is no such answer."""
    if sent.thread is None or sent.thread.type == "create":
        return None
    name, identity = sent.thread.previous_message_id or "", identity_of(request)
    if id := MessageId.parse(name):
        identity.require_reach(id.chat)
        with suppress(NotFound):
            await services.storage.turns.get(identity.owner, id.chat, id.turn)
            return HistoryPlace(id.chat, id.turn, id.part)
    raise ThreadRefused(f"There is no message {name}.", "thread_not_found")


async def _resumed(request: Request, services: Services, text: str) -> tuple[Turn, int]:
    """Returns the turn and the part of the message that the header names. Raises BadRequest, NotFound."""
    id = MessageId.parse(text)
    if id is None:
        raise BadRequest(f"`{RESUME}` must be the value of the same header in an earlier response.", field=RESUME)
    identity = identity_of(request)
    identity.require_reach(id.chat, id.turn)
    turn = await services.storage.turns.get(identity.owner, id.chat, id.turn)
    if turn.role == "user" or id.part > len({ask.round for ask in turn.asks if ask.is_marked and ask.answer}):
        raise NotFound(f"There is no message {text}.")
    return turn, id.part

"""Handlers of OpenAI's Responses API."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.exchange import cancel_turn
from turnstream.api.http.reading import idempotency_key_of, limit_of, read_body
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.api.streams.turn import passed_on
from turnstream.domain.errors import NotFound, ProviderError, RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.errors import failed_call
from turnstream.extensions.openai_api.history import PLACE, past_items
from turnstream.extensions.openai_api.inputs import (
    items_of,
    new_turn,
    options_of,
    origin_of,
    split_input,
    unknown_previous,
)
from turnstream.extensions.openai_api.items import input_items_of
from turnstream.extensions.openai_api.objects import ResponseId, chat_of_conversation, parts_of
from turnstream.extensions.openai_api.posting import Place, Posting, is_to_be_stored
from turnstream.extensions.openai_api.references import with_referenced
from turnstream.extensions.openai_api.schemas import Included, ResponseIn
from turnstream.extensions.openai_api.stream import event_stream, response_now, response_reader
from turnstream.libraries.dialects.chats import wait_for_end
from turnstream.libraries.dialects.counting import count_input
from turnstream.libraries.dialects.histories import NO_MESSAGE
from turnstream.libraries.dialects.unstored import Forgetting, delete_turn, delivered

_NUMBER = re.compile("-?[0-9]{1,17}")


async def create_response(request: Request) -> Response:
    """Posts a message, or answers the calls that wait. Returns the response, its stream or, for `background`, its
    beginning.
    """
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, ResponseIn)
    if sent.background and sent.store is False:
        raise RequestRefused("`store` must be left out with `background`.", field="store")
    items = await with_referenced(services, identity_of(request), items_of(sent.input))
    input, options = await split_input(items), options_of(services, sent)
    place = await place_of(request, services, sent)
    if sent.stream:
        services.streams.take(request)
    key = idempotency_key_of(request, body)
    stores = sent.background is True or is_to_be_stored(services, sent)
    posting = Posting(request, services, options, input, key, stores=stores)
    turn, part = await posting.respond(place)
    forget = None if stores else Forgetting(services, owner, turn, keeps_chat=sent.conversation is not None)
    reader = response_reader(services, owner, turn, part, previous=sent.previous_response_id, stored=stores)
    if sent.stream:
        return event_stream(services, delivered(reader.frames(), forget), options.headers)
    if sent.background:
        return Response(to_json(reader.events.response()), 200, options.headers, "application/json")
    await reader.end()
    response = to_json(reader.events.response())
    if forget is not None:
        await forget()
    return Response(response, 200, options.headers, "application/json")


async def count_input_tokens(request: Request) -> Response:
    """Returns the number of input tokens with which a response to this body would start."""
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, ResponseIn)
    items = await with_referenced(services, identity_of(request), items_of(sent.input))
    input, options = await split_input(items), options_of(services, sent)
    place = await place_of(request, services, sent)
    input.blocks = [NO_MESSAGE]  # the items are counted separately
    new = new_turn(services, options, input, follows=place.origin is not None)
    path = await previous_path(services, owner, place.origin) if place.origin else ()
    try:
        count = await count_input(services, owner, new, past_items(items), PLACE, path)
    except ProviderError as error:
        return failed_call(error)
    return Response(to_json({"object": "response.input_tokens", "input_tokens": count}), media_type="application/json")


async def get_response(request: Request) -> Response:
    services, owner = services_and_owner(request)
    _check_query(request, "stream", "starting_after", "include", "include[]", "include_obfuscation")
    for value in [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]:
        if value not in get_args(Included):
            known = " or ".join(f"`{each}`" for each in get_args(Included))
            raise RequestRefused(f"`include` must be {known}; {value!r} is not here.", field="include")
    id, turn = await _found(request, services, owner)
    previous = await _previous(services, owner, turn)
    if request.query_params.get("stream") in {"true", "1"}:
        services.streams.take(request)
        after = _number_in_query(request)
        if answer := await passed_on(request, turn):
            return answer
        return event_stream(services, response_reader(services, owner, turn, id.part, after, previous).frames())
    response = await response_now(services, turn, id.part, previous)
    return Response(to_json(response), media_type="application/json")


async def cancel_response(request: Request) -> Response:
    """Cancels the response unless it has ended, and returns it."""
    services, owner = services_and_owner(request)
    id, turn = await _found(request, services, owner)
    if not turn.ended:
        await cancel_turn(services, owner, id.chat, id.turn)
        await wait_for_end(services, owner, turn)
        turn = await services.storage.turns.get(owner, id.chat, id.turn)
    response = await response_now(services, turn, id.part, await _previous(services, owner, turn))
    return Response(to_json(response), media_type="application/json")


async def delete_response(request: Request) -> Response:
    """Deletes the turn of the response, and all later responses."""
    services, owner = services_and_owner(request)
    id, turn = await _found(request, services, owner)
    identity_of(request).require_reach(id.chat)  # the credential must also reach the descendants of the turn
    await delete_turn(services, owner, turn)
    return Response(to_json({"id": str(id), "object": "response", "deleted": True}), media_type="application/json")


async def list_input_items(request: Request) -> Response:
    """Returns the input of the response: the client's message, or the client's answers to calls."""
    services, owner = services_and_owner(request)
    id, turn = await _found(request, services, owner)
    identity_of(request).require_reach(id.chat)  # the user's message is outside of the turn
    assert turn.parent_id is not None
    user_turn = await services.storage.turns.get(owner, id.chat, turn.parent_id)
    items = input_items_of(user_turn, turn, id.part)
    return item_page(request, items)


def item_page(request: Request, items: Sequence[dict[str, Any]], *, more: bool = False) -> Response:
    """Returns a page of items, newest first unless `order` is `asc`. Raises RequestRefused."""
    _check_query(request, "limit", "order", "after")
    limit, order = limit_of(request, 20, 100), request.query_params.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise RequestRefused("`order` must be `asc` or `desc`.", field="order")
    listed = list(items) if order == "asc" else list(reversed(items))
    if after := request.query_params.get("after"):
        places = [place for place, item in enumerate(listed, 1) if item["id"] == after]
        if not places:
            raise RequestRefused(f"`after` must be the id of an item of this list; {after} is none.", field="after")
        listed = listed[places[0] :]
    page = listed[:limit]
    body = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": more or len(listed) > limit,
    }
    return Response(to_json(body), media_type="application/json")


async def place_of(request: Request, services: Services, sent: ResponseIn) -> Place:
    """Returns the chat of the response, and the previous response, which is the named one or the newest of the
    conversation.
    """
    origin, identity = origin_of(sent), identity_of(request)
    if sent.conversation is not None:
        name = sent.conversation if isinstance(sent.conversation, str) else sent.conversation.id
        chat = chat_of_conversation(name)
        if chat is None:
            raise NotFound(f"There is no conversation {name}.")
        identity.require_reach(chat)
        newest = await services.storage.turns.newest(identity.owner, chat)
        return Place(chat, None if newest is None else ResponseId(chat, newest), named=True)
    identity.require_reach(origin.chat if origin else None)
    return Place(origin.chat, origin, named=True) if origin else Place()


async def previous_path(services: Services, owner: str, origin: ResponseId) -> Sequence[Turn]:
    """Returns the path to the response that a request names. Raises RequestRefused."""
    try:
        return await services.storage.turns.path(owner, origin.chat, origin.turn)
    except NotFound:
        raise unknown_previous(str(origin)) from None


async def _found(request: Request, services: Services, owner: str) -> tuple[ResponseId, Turn]:
    """Returns the id of the response that the URL names, and the turn of the response. Raises NotFound."""
    text = request.path_params["response"]
    id = ResponseId.parse(text)
    if id is None:
        raise NotFound(f"There is no response {text}.")
    identity_of(request).require_reach(id.chat, id.turn)
    try:
        turn = await services.storage.turns.get(owner, id.chat, id.turn)
    except NotFound:
        raise NotFound(f"There is no response {text}.") from None
    if turn.role == "user" or id.part >= parts_of(turn):
        raise NotFound(f"There is no response {text}.")
    return id, turn


async def _previous(services: Services, owner: str, turn: Turn) -> str | None:
    """Returns the id of the previous response, namely of its first part."""
    assert turn.parent_id is not None
    question = await services.storage.turns.get(owner, turn.chat_id, turn.parent_id)
    return str(ResponseId(turn.chat_id, question.parent_id)) if question.parent_id else None


def _check_query(request: Request, *known: str) -> None:
    """Raises RequestRefused if the query has a parameter that is not `known`."""
    for name in request.query_params:
        if name not in known:
            names = ", ".join(f"`{each}`" for each in known)
            raise RequestRefused(f"`{name}` must be left out; known here are {names}.", field=name)


def _number_in_query(request: Request) -> int:
    text = request.query_params.get("starting_after", "-1")
    if not _NUMBER.fullmatch(text):
        raise RequestRefused("`starting_after` must be the sequence number of an event.", field="starting_after")
    return max(-1, int(text))

"""Handlers for the AI SDK's `useChat`, which reads and continues chats in the SDK's own protocol."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from uuid import UUID

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import CALLER
from turnstream.api.codec import output_text, to_json
from turnstream.api.http.reading import id_in_query, idempotency_key_of, read_body
from turnstream.api.services import Services, identity_of, path_for, services_and_owner
from turnstream.api.streams.turn import passed_on
from turnstream.api.views import json_response
from turnstream.domain.asks import Ask, AskAnswer
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.turns import Turn
from turnstream.extensions.ai_sdk.messages import ENDED_CALLS, past_items, ui_message
from turnstream.extensions.ai_sdk.parts import Json
from turnstream.extensions.ai_sdk.schemas import UiMessageIn, UiRequest, UiStopped, blocks_in
from turnstream.extensions.ai_sdk.stream import counted_stream, ui_stream
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.chats import (
    PageOptions,
    chat_of,
    is_news,
    new_chat,
    new_turn,
    newest_answer,
    newest_path,
    newest_turn,
    page_tool,
    post_by_chat,
    replace_answer,
    stop_all,
    storable_in_messages,
    with_page,
)
from turnstream.libraries.dialects.histories import (
    NO_MESSAGE,
    go_on_from_results,
    key_of,
    last_answer,
    past_answer,
    post_behind_items,
    posted_with,
    seed_of,
    spoken,
    turn_of,
)
from turnstream.libraries.dialects.results import check_may_answer, store_results
from turnstream.libraries.dialects.schemas import UiOptions
from turnstream.storage.chats.actions import Decision
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, Parent, Target

_INDEX = re.compile(r"-?[0-9]{1,9}")
_RUN = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9]{1,9})")


async def converse(request: Request) -> Response:
    """Posts a message, answers waiting calls, or generates an answer again. Responds with the stream."""
    return ui_stream(*await _conversed(request))


async def converse_counted(request: Request) -> Response:
    """Does the same as `converse`, for a client that counts the chunks."""
    return counted_stream(*await _conversed(request))


async def _conversed(request: Request) -> tuple[Services, str, Turn, Collection[str] | None]:
    """Returns the turn to stream. If the client has the beginning of this turn, also returns the ids of the client's
    calls.
    """
    services, owner = services_and_owner(request)
    sent, body = await read_body(request, UiRequest)
    key = idempotency_key_of(request, body)
    if not sent.all_messages:
        raise RequestRefused("`messages` must hold at least the last message.", field="messages")
    id = await chat_of(services, identity_of(request), sent.id)
    services.streams.take(request)
    if sent.trigger == "regenerate-message":
        identity_of(request).require("chat")
    elif sent.all_messages[-1].role != "assistant":
        identity_of(request).require("send")
    if sent.trigger == "regenerate-message":
        exchange = await _regenerate(services, owner, id, sent, key)
    elif sent.all_messages[-1].role == "assistant":
        found = await _answer_calls(services, identity_of(request), id, sent.all_messages[-1])
        if found is not None:
            return found
        exchange = await _go_on(services, owner, id, sent, key)
    else:
        exchange = await _post(services, owner, id, sent, key)
    return services, owner, exchange.assistant_turn, None


async def resume_counted(request: Request) -> Response:
    """Streams an answer, starting at a given chunk. The id is a run id, `CHAT.TURN.PLACE`, or a chat id, which selects
    the newest answer of the chat.
    """
    services, owner = services_and_owner(request)
    id, _, run = request.path_params["id"].partition(".")
    chat = await chat_of(services, identity_of(request), id)
    start = request.query_params.get("startIndex", "0")
    if not _INDEX.fullmatch(start):
        raise RequestRefused("`startIndex` must be a whole number.", field="startIndex")
    named = _RUN.fullmatch(run)
    place = 0
    if named:
        turn, place = await services.storage.turns.get(owner, chat, UUID(named[1])), int(named[2])
    elif (newest := await newest_turn(services, owner, chat)) is not None:
        turn = newest
    else:
        raise NotFound("This chat has no answer yet.")
    services.streams.take(request)
    if answer := await passed_on(request, turn):
        return answer
    return counted_stream(services, owner, turn, place=place, start=int(start))


async def resume_answer(request: Request) -> Response:
    """Streams an answer from its beginning: the answer that the query names, or the newest answer unless it ended long
    ago.
    """
    services, owner = services_and_owner(request)
    id = await chat_of(services, identity_of(request), request.path_params["id"])
    named = id_in_query(request, "turn")
    turn = await services.storage.turns.get(owner, id, named) if named else await newest_turn(services, owner, id)
    if turn is None or not (named or is_news(turn)):
        return Response(status_code=204)
    services.streams.take(request)
    return await passed_on(request, turn) or ui_stream(services, owner, turn)


async def list_messages(request: Request) -> Response:
    """Returns the turns on the path to the newest turn, as messages for `useChat({messages})`."""
    services, owner = services_and_owner(request)
    id = await chat_of(services, identity_of(request), request.path_params["id"])
    path, uploads = await newest_path(services, owner, id), path_for(request, "/api/uploads/")
    messages, portions = [], Portions()
    for turn in spoken(path):
        message = await ui_message(turn, uploads, portions)
        messages.append(Raw(message.model_dump_json().encode()))
        await portions.pause()
    return Response(to_json({"id": id, "messages": messages}), media_type="application/json")


async def stop_chat(request: Request) -> Response:
    """Cancels all open turns of the chat. The SDK's `stop()` is not enough: it only closes the client's connection."""
    services, owner = services_and_owner(request)
    id = await chat_of(services, identity_of(request), request.path_params["id"])
    return json_response(UiStopped(stopped=await stop_all(services, owner, id)))


# --- a new message ---------------------------------------------------------------------------------------------------


async def _post(services: Services, owner: str, chat: UUID, sent: UiRequest, key: IdempotencyKey | None) -> Exchange:
    message = sent.all_messages[-1]
    before, known = await _answer_before(services, owner, chat, sent)
    place = _place(sent, before)
    options = await _options(services, owner, chat, sent, before)
    new = new_turn(options, blocks_in(message.parts))
    target = Target(owner, chat, place, new.on_busy)
    before_it, key = sent.messages if sent.message else sent.messages[:-1], key or _key(chat, message, place)
    if before is not None and (
        exchange := await post_behind_items(services, new, target, key, past_items(before_it[known:]), "messages")
    ):
        return exchange
    return await post_by_chat(
        services,
        new,
        target,
        key,
        lambda: seed_of(services, CALLER.get(), past_items(before_it), "messages"),
    )


async def _go_on(services: Services, owner: str, chat: UUID, sent: UiRequest, key: IdempotencyKey | None) -> Exchange:
    """Creates a turn that continues the last answer of the chat with tool results for which no turn waits. Raises
    RequestRefused.
    """
    last = sent.all_messages[-1]
    named = [each.id if each.role == "assistant" else "" for each in sent.all_messages]
    before, known = await last_answer(services, owner, chat, named)
    items = list(past_items(sent.all_messages[known:]))
    if any("toolCallId" in part and part.get("state") not in ENDED_CALLS for part in last.parts):
        raise RequestRefused("`messages` must end with an output for each call of the last answer.", field="messages")
    new = new_turn(await _options(services, owner, chat, sent, before), [NO_MESSAGE])
    key = key or key_of("ai-sdk", chat, last.id, "results", last.parts)
    exchange = await go_on_from_results(services, new, new_chat(owner, chat), before, items, key, "messages")
    if exchange is None:
        detail = "`messages` must end with a user message, an answer of this chat, or an output for each of its calls."
        raise RequestRefused(detail, field="messages")
    return exchange


async def _options(services: Services, owner: str, chat: UUID, sent: UiRequest, before: Turn | None) -> UiOptions:
    if sent.tools is None and not sent.system:  # the request comes from another transport than assistant-ui's
        return sent.turnstream
    tools = [page_tool(name, tool.description, tool.parameters) for name, tool in (sent.tools or {}).items()]
    page = PageOptions(None if sent.tools is None else tools, sent.system or "")
    return await with_page(services, owner, chat, sent.turnstream, page, before)


async def _answer_before(services: Services, owner: str, chat: UUID, sent: UiRequest) -> tuple[Turn | None, int]:
    """Returns the last listed answer before the message, and the number of messages up to this answer. Before an edited
    message, this may be a recorded answer, whose id the client does not know.
    """
    before = sent.messages if sent.message else sent.messages[:-1]
    named = [each.id if each.role == "assistant" else "" for each in before]
    found, known = await last_answer(services, owner, chat, named)
    if found is None and before and sent.message_id and not sent.message:
        with suppress(NotFound):
            return past_answer(await newest_path(services, owner, chat), past_items(before), "messages"), len(before)
    return found, known


def _place(sent: UiRequest, before: Turn | None) -> Parent:
    """Returns the place of a message: after the answer `before`, or at the root for an edited first message."""
    if before is not None:
        return before.id
    return None if sent.message_id and not sent.message else "newest"


def _key(chat: UUID, message: UiMessageIn, place: Parent) -> IdempotencyKey | None:
    """Returns the key of a message at its place: repeated requests have the same key."""
    if not message.id:
        return None
    return key_of("ai-sdk", chat, message.id, str(place), message.parts)


# --- another answer --------------------------------------------------------------------------------------------------


async def _regenerate(
    services: Services, owner: str, chat: UUID, sent: UiRequest, key: IdempotencyKey | None
) -> Exchange:
    turn = await _answer_to_replace(services, owner, chat, sent)
    if turn is None:
        return await _post(services, owner, chat, sent, key)
    options = await _options(services, owner, chat, sent, turn)
    return await replace_answer(services, owner, turn, options, options.on_busy, key)


async def _answer_to_replace(services: Services, owner: str, chat: UUID, sent: UiRequest) -> Turn | None:
    """Returns the answer that the request names, or the newest answer to the last message."""
    if sent.message_id and (turn := await turn_of(services, owner, chat, sent.message_id, "assistant")):
        return turn
    message = sent.all_messages[-1]
    if message.role != "user":
        raise RequestRefused("`messages` must end with the user message to answer again.", field="messages")
    user_turn = await turn_of(services, owner, chat, message.id, "user")
    if user_turn is None:
        before, _ = await _answer_before(services, owner, chat, sent)
        user_turn = await posted_with(services, owner, _key(chat, message, _place(sent, before)))
    return await newest_answer(services, owner, user_turn)


# --- calls that wait for a person ------------------------------------------------------------------------------------


async def _answer_calls(
    services: Services, identity: Identity, chat: UUID, message: UiMessageIn
) -> tuple[Services, str, Turn, Collection[str]] | None:
    """Stores the message's answers to waiting calls, and returns the turn, whose rest is then streamed. Returns None
    for a message from outside of this chat.
    """
    owner = identity.owner
    turn = await turn_of(services, owner, chat, message.id, "assistant")
    if turn is None:
        return None
    calls = {str(part.get("toolCallId")): part for part in message.parts if "toolCallId" in part}
    decisions = _decisions_in(calls, turn)
    check_may_answer(identity, decisions)
    if decisions and not turn.ended:
        turn = await store_results(services, identity, turn, decisions)
    return services, owner, turn, calls.keys()


def _decisions_in(calls: Mapping[str, Json], turn: Turn) -> list[Decision]:
    """Returns the decisions about the open asks of the turn. `calls` are the tool parts of a message, by call id."""
    waiting = [(ask, calls[ask.tool_use_id]) for ask in turn.asks if ask.answer is None and ask.tool_use_id in calls]
    found = [_result(ask, part) if ask.kind == "client" else _approval(ask, part) for ask, part in waiting]
    return [decision for decision in found if decision is not None]


def _result(ask: Ask, part: Json) -> Decision | None:
    if part.get("state") == "output-available":
        text = output_text(part.get("output"))
        return Decision(ask.tool_use_id, None, AskAnswer("result", storable_in_messages(text)), "messages")
    if part.get("state") == "output-error":
        error = AskAnswer("result", storable_in_messages(str(part.get("errorText", ""))), is_error=True)
        return Decision(ask.tool_use_id, None, error, "messages")
    return None


def _approval(ask: Ask, part: Json) -> Decision | None:
    approval = part.get("approval")
    if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
        return None
    reason = storable_in_messages(str(approval.get("reason") or ""))
    answer = AskAnswer("approve") if approval["approved"] else AskAnswer("deny", reason)
    _, _, digest = str(approval.get("id", "")).rpartition(":")
    return Decision(ask.tool_use_id, digest, answer, "messages")

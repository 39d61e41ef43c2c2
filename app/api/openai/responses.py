"""Handlers of OpenAI's Responses API."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from app.api.codec import to_json
from app.api.exchange import cancel_turn, post_in_new_chat, post_message, wait_for_end
from app.api.http.reading import idempotency_key_of, limit_of, read_body
from app.api.openai.inputs import Input, new_turn, origin_of, read_items, result_text, split_input, unknown_previous
from app.api.openai.items import input_items_of
from app.api.openai.objects import ResponseId, approval_id, chat_of_conversation, parts_of
from app.api.openai.schemas import ApprovalItem, FunctionOutputItem, ResponseIn
from app.api.openai.stream import ResponseReader, event_stream, response_now
from app.api.services import Services, begin, identity_of
from app.domain.asks import Ask, AskAnswer
from app.domain.chats import Chat
from app.domain.errors import NotFound, RequestRefused
from app.domain.turns import Turn
from app.kit.ids import new_id
from app.storage.actions import Decision
from app.storage.exchanges import IdempotencyKey, Parent, Target


async def create_response(request: Request) -> Response:
    """Posts a message, or answers calls that wait; returns the response, its stream, or at once its beginning."""
    services, owner = begin(request)
    sent, body = await read_body(request, ResponseIn)
    if sent.background and sent.store is False:
        raise RequestRefused("`store` must be left out with `background`.", field="store")
    key = idempotency_key_of(request, body)
    input = split_input(read_items(sent.input))
    chat, origin = await _origin(request, services, sent, input)
    if input.answers:
        turn, part = await _answer(request, services, sent, input, origin, key)
    else:
        turn, part = await _post(services, owner, sent, input, (chat, origin), key), 0
    forget = (
        _Forgetting(services, owner, turn, keeps_chat=sent.conversation is not None) if sent.store is False else None
    )
    reader = ResponseReader(services, owner, turn, part, previous=sent.previous_response_id)
    if sent.stream:
        return event_stream(services, _delivered(reader, forget))
    if sent.background:
        return Response(to_json(reader.events.response()), media_type="application/json")
    response = to_json(await reader.ended())
    return Response(response, media_type="application/json", background=BackgroundTask(forget) if forget else None)


async def get_response(request: Request) -> Response:
    services, owner = begin(request)
    id, turn = await _found(request, services, owner)
    previous = await _previous(services, owner, turn)
    if request.query_params.get("stream") in {"true", "1"}:
        services.streams.check(owner)
        after = _number_in_query(request)
        return event_stream(services, ResponseReader(services, owner, turn, id.part, after, previous).frames())
    response = response_now(services, turn, id.part, previous)
    return Response(to_json(response), media_type="application/json")


async def cancel_response(request: Request) -> Response:
    """Returns the response as it is then: one that has ended stays as it is."""
    services, owner = begin(request)
    id, turn = await _found(request, services, owner)
    if not turn.ended:
        await cancel_turn(services, owner, id.chat, id.turn)
        await wait_for_end(services, owner, turn)
        turn = await services.storage.turns.get(owner, id.chat, id.turn)
    response = response_now(services, turn, id.part, await _previous(services, owner, turn))
    return Response(to_json(response), media_type="application/json")


async def delete_response(request: Request) -> Response:
    """Deletes the turn of the response, and the responses that follow it."""
    services, owner = begin(request)
    id, turn = await _found(request, services, owner)
    await _delete(services, owner, turn)
    return Response(to_json({"id": str(id), "object": "response", "deleted": True}), media_type="application/json")


async def list_input_items(request: Request) -> Response:
    """What the client sent for the response: its message, or its answers to calls."""
    services, owner = begin(request)
    id, turn = await _found(request, services, owner)
    assert turn.parent_id is not None
    user_turn = await services.storage.turns.get(owner, id.chat, turn.parent_id)
    items = input_items_of(user_turn, turn, id.part)
    return item_page(request, items)


def item_page(request: Request, items: Sequence[dict[str, Any]], *, more: bool = False) -> Response:
    """A list of items, the last of them first unless `order` is `asc`. Raises RequestRefused."""
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


# --- where a response goes -------------------------------------------------------------------------------------------


async def _origin(
    request: Request, services: Services, sent: ResponseIn, input: Input
) -> tuple[Any, ResponseId | None]:
    """The chat of the response, None for a new one, and the response that it follows: the one that is named, that of
    the last item of an answer in the input, or the newest of the conversation.
    """
    origin, identity = origin_of(sent) or input.origin, identity_of(request)
    if sent.conversation is not None:
        name = sent.conversation if isinstance(sent.conversation, str) else sent.conversation.id
        chat = chat_of_conversation(name)
        if chat is None:
            raise NotFound(f"There is no conversation {name}.")
        identity.require_reach(chat)
        newest = await services.storage.turns.newest(identity.owner, chat)
        return chat, None if newest is None else ResponseId(chat, newest)
    identity.require_reach(origin.chat if origin else None)
    return (origin.chat if origin else None), origin


async def _post(
    services: Services,
    owner: str,
    sent: ResponseIn,
    input: Input,
    place: tuple[Any, ResponseId | None],
    key: IdempotencyKey | None,
) -> Turn:
    chat, origin = place
    if not input.blocks:
        raise RequestRefused("`input` must have a message of the user, or the outputs of calls.", field="input")
    new = new_turn(services, sent, input, follows=origin is not None)
    if chat is None:
        now = datetime.now(UTC)
        created = Chat(new_id(), owner, None, None, {}, created_at=now, updated_at=now)
        return (await post_in_new_chat(services, new, created, key)).assistant_turn
    parent: Parent = None
    if origin is not None:
        before = await _turn_of(services, owner, origin)
        _check_nothing_waits(before, ())
        parent = before.id
    return (await post_message(services, new, Target(owner, chat, parent), key)).assistant_turn


async def _turn_of(services: Services, owner: str, id: ResponseId) -> Turn:
    """Raises RequestRefused."""
    try:
        turn = await services.storage.turns.get(owner, id.chat, id.turn)
    except NotFound:
        raise unknown_previous(str(id)) from None
    if turn.role == "user":
        raise unknown_previous(str(id))
    return turn


# --- answers to calls ------------------------------------------------------------------------------------------------


async def _answer(
    request: Request,
    services: Services,
    sent: ResponseIn,
    input: Input,
    origin: ResponseId | None,
    key: IdempotencyKey | None,
) -> tuple[Turn, int]:
    """Stores the answers of the input; returns the turn, and the part of it that follows them. A message that comes
    with them is one to the running turn.
    """
    identity = identity_of(request)
    owner = identity.owner
    if origin is None:
        call = input.answers[0]
        name = call.call_id if isinstance(call, FunctionOutputItem) else call.approval_request_id
        detail = f"No call is known for the output of {name}: send `previous_response_id`, or the items of the response"
        raise RequestRefused(f"{detail} that has the call.", field="input")
    turn = await _turn_of(services, owner, origin)
    decisions = [_decision(turn, item) for item in input.answers]
    for decision in decisions:
        identity.require("chat" if decision.answer.kind == "result" else "approve")
    part = _part_behind(turn, decisions)
    if not _was_answered_so(turn, decisions):
        _check_nothing_waits(turn, [decision.tool_use_id for decision in decisions])
        actor = identity.credential or ""
        turn = await services.storage.actions.answer(owner, turn.chat_id, turn.id, decisions, key, actor)
        if not turn.ended:
            await services.live.refresh(turn.id)
            services.live.feed.notify(owner)
        if input.blocks:
            new = new_turn(services, sent, input, follows=True)
            target = Target(owner, turn.chat_id, turn.id, "steer")
            exchange = await post_message(services, new, target, None)
            if not exchange.steered:
                return exchange.assistant_turn, 0
            turn = exchange.assistant_turn
    return turn, part


def _decision(turn: Turn, item: FunctionOutputItem | ApprovalItem) -> Decision:
    if isinstance(item, FunctionOutputItem):
        return Decision(item.call_id, None, AskAnswer("result", result_text(item)), "input")
    call = next((block for block in turn.blocks if approval_id(turn, block) == item.approval_request_id), None)
    ask = None if call is None else _last_ask(turn, call.tool_use_id or "")
    if ask is None:
        detail = f"No approval has the id {item.approval_request_id}: send that of an `mcp_approval_request`."
        raise RequestRefused(detail, field="input")
    answer = AskAnswer("approve") if item.approve else AskAnswer("deny", item.reason or "")
    return Decision(ask.tool_use_id, ask.digest, answer, "input")


def _last_ask(turn: Turn, call: str) -> Ask | None:
    return next((ask for ask in reversed(turn.asks) if ask.tool_use_id == call), None)


def _part_behind(turn: Turn, decisions: Sequence[Decision]) -> int:
    """The number of the part that begins with the answers. The waits of a turn are in the order of their rounds."""
    asks = [_last_ask(turn, decision.tool_use_id) for decision in decisions]
    for decision, ask in zip(decisions, asks, strict=True):
        if ask is None:
            detail = f"No call of the response has the id {decision.tool_use_id}, or it waits for no output."
            raise RequestRefused(detail, field="input")
    last = max(ask.round for ask in asks if ask is not None)
    return len({ask.round for ask in turn.asks if ask.is_marked and ask.round <= last})


def _was_answered_so(turn: Turn, decisions: Sequence[Decision]) -> bool:
    """Whether the same answers were stored before, as by a request whose response was lost."""
    asks = [_last_ask(turn, decision.tool_use_id) for decision in decisions]
    given = [ask.answer and (ask.answer.kind, ask.answer.text) for ask in asks if ask is not None]
    return given == [(decision.answer.kind, decision.answer.text) for decision in decisions]


def _check_nothing_waits(turn: Turn, answered: Sequence[str]) -> None:
    """Raises RequestRefused where a call of the turn would still wait."""
    for ask in turn.asks:
        if turn.status == "waiting" and ask.answer is None and ask.tool_use_id not in answered:
            detail = f"No tool output found for function call {ask.tool_use_id}: send one for each call that waits."
            raise RequestRefused(detail, field="input")


# --- reading and deleting --------------------------------------------------------------------------------------------


async def _found(request: Request, services: Services, owner: str) -> tuple[ResponseId, Turn]:
    """The response in the path and its turn. Raises NotFound."""
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
    """The response before, whose id is that of its first part."""
    assert turn.parent_id is not None
    question = await services.storage.turns.get(owner, turn.chat_id, turn.parent_id)
    return str(ResponseId(turn.chat_id, question.parent_id)) if question.parent_id else None


def _number_in_query(request: Request) -> int:
    text = request.query_params.get("starting_after", "-1")
    if not text.removeprefix("-").isdigit() or len(text) > 18:
        raise RequestRefused("`starting_after` must be the sequence number of an event.", field="starting_after")
    return max(-1, int(text))


async def _delete(services: Services, owner: str, turn: Turn) -> None:
    async for _, running in services.storage.branches.delete(owner, turn.chat_id, turn.id):
        for id in running:
            await services.live.cancel(id)
        services.live.notify(owner, turn.chat_id)


class _Forgetting:
    """Deletes what was not to be stored, once it was delivered. A turn that waits for its client stays until then."""

    def __init__(self, services: Services, owner: str, turn: Turn, *, keeps_chat: bool) -> None:
        self._services, self._owner, self._turn, self._keeps_chat = services, owner, turn, keeps_chat

    async def __call__(self) -> None:
        storage, owner, chat = self._services.storage, self._owner, self._turn.chat_id
        if not (await storage.turns.get(owner, chat, self._turn.id)).ended:
            return
        await _delete(self._services, owner, self._turn)
        if not self._keeps_chat and await storage.turns.newest(owner, chat) is None:
            await storage.chats.delete(owner, chat)
            self._services.live.notify(owner, chat)


async def _delivered(reader: ResponseReader, forget: _Forgetting | None) -> AsyncGenerator[bytes, None]:
    async with aclosing(reader.frames()) as frames:
        async for frame in frames:
            yield frame
    if forget is not None:
        await forget()

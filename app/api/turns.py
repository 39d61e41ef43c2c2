"""Turns: say something, read what was said, stop it, ask again."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from app.api.attachments import check_attachments, spoken, told
from app.api.chats import checked_settings
from app.api.http.reading import id_of, idempotency_key_of, limit_of, read_body
from app.api.resolve import again, resolve
from app.api.schemas.blocks import TextBlockIn
from app.api.schemas.requests import NewChat, NewTurn, NewTurnInNewChat, TurnOptions
from app.api.schemas.responses import ExchangeOut, PathPage, SiblingsOut
from app.api.services import Services, begin
from app.api.streams.chat import cursor_behind
from app.api.streams.turn import stream_response
from app.api.views import json_response, stream_url, turn_out
from app.domain.errors import RequestRefused
from app.domain.turns import Turn, TurnRequest
from app.kit.ids import new_id
from app.storage.chat_changes import ChatState, place_of
from app.storage.chats import Chat
from app.storage.exchanges import Draft, Exchange, IdempotencyKey, KeyTaken

_TITLE_LENGTH = 60


async def create_turn(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    new, body = await read_body(request, NewTurn)
    key = idempotency_key_of(request, body)
    if "parent_id" in new.model_fields_set:
        drafting = services.exchanges.after(owner, chat, new.parent_id, key, new.on_busy)
    else:
        drafting = services.exchanges.after_newest(owner, chat, key, new.on_busy)
    return await _answer(request, services, owner, await say(services, owner, new, drafting, key))


async def create_turn_in_new_chat(request: Request) -> Response:
    services, owner = await begin(request)
    new, body = await read_body(request, NewTurnInNewChat)
    key = idempotency_key_of(request, body)
    drafting = services.exchanges.in_new_chat(_new_chat(services, owner, new.chat), key)
    return await _answer(request, services, owner, await say(services, owner, new, drafting, key))


async def regenerate(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    options, body = await read_body(request, TurnOptions)
    key = idempotency_key_of(request, body)
    exchange = await answer_again(services, owner, chat, id_of(request, "turn"), options, key)
    return await _answer(request, services, owner, exchange)


async def cancel(request: Request) -> Response:
    services, owner = await begin(request)
    turn = await stop(services, owner, id_of(request, "chat"), id_of(request, "turn"))
    return json_response(turn_out(turn, services), 200 if turn.ended else 202)


async def get_path(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    await services.chats.get(owner, chat)
    limit = limit_of(request, default=100, most=500)
    while True:
        standing = await services.chat_changes.state(chat)
        leaf = await _leaf_of(request, services, chat) or standing.newest
        path = await services.turns.path(owner, chat, leaf, limit) if leaf else []
        if not path or place_of(path[-1]) <= standing.last:  # else the leaf was made in between
            return await _page(services, path, standing)


async def get_path_of_turn(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    limit = limit_of(request, default=100, most=500)
    standing = await services.chat_changes.state(chat)
    path = await services.turns.path(owner, chat, id_of(request, "turn"), limit)
    return await _page(services, path, standing)


async def get_turn(request: Request) -> Response:
    services, owner = await begin(request)
    turn = await services.turns.get(owner, id_of(request, "chat"), id_of(request, "turn"))
    siblings = await services.turns.siblings([turn.id])
    return json_response(turn_out(turn, services, siblings[turn.id]))


async def get_siblings(request: Request) -> Response:
    services, owner = await begin(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")
    await services.turns.get(owner, chat, turn)
    siblings = await services.turns.siblings([turn])
    turns = await services.turns.several(owner, chat, siblings[turn])
    return json_response(SiblingsOut(turns=[turn_out(turn, services) for turn in turns]))


# --- the parts -------------------------------------------------------------------------------------------------------


async def say(
    services: Services,
    owner: str,
    new: NewTurn,
    drafting: AbstractAsyncContextManager[Draft],
    key: IdempotencyKey | None,
) -> Exchange:
    """The exchange that was made, or the one that the first request with this key has made."""
    try:
        blocks = await told(new.blocks, owner, services)  # before a transaction is open: this needs a connection too
    except RequestRefused:
        if await services.exchanges.knows(owner, key):  # what the first request meant may be gone since
            return await _made_before(services, owner, key)
        raise
    try:
        async with drafting as draft:
            if draft.steered is not None:
                await draft.steer(spoken(new.blocks))
                exchange = Exchange(draft.steered, draft.steered, steered=True)
            else:
                before = _request_of(draft.before) if draft.before else None
                asked = resolve(new, draft.chat, before, services.defaults, services.models, services.toolset)
                check_attachments(services.models.check(asked.model), blocks)
                exchange = await draft.say(blocks, asked, _title(new))
    except KeyTaken:
        return await _made_before(services, owner, key)
    for turn in draft.interrupted:
        await services.cancel(turn)
    if draft.steered is not None:
        await services.refresh(draft.steered.id)
        open_turn = await services.turns.get(owner, draft.chat.id, draft.steered.id)
        exchange = replace(exchange, assistant_turn=open_turn)
    _ring(services, exchange)
    return exchange


async def answer_again(
    services: Services, owner: str, chat: UUID, turn: UUID, options: TurnOptions, key: IdempotencyKey | None
) -> Exchange:
    try:
        async with services.exchanges.beside(owner, chat, turn, key) as draft:
            asked = again(options, _request_of(draft.before), services.models, services.toolset)
            answer = await draft.answer_again(asked)
    except KeyTaken:
        return await _made_before(services, owner, key)
    assert answer.parent_id is not None
    exchange = Exchange(await services.turns.get(owner, chat, answer.parent_id), answer)
    _ring(services, exchange)
    return exchange


async def stop(services: Services, owner: str, chat: UUID, turn: UUID) -> Turn:
    """As it is now: one that runs has not ended yet."""
    found = await services.turns.cancel(owner, chat, turn)
    if not found.ended:
        await services.cancel(turn)
    return found


async def _made_before(services: Services, owner: str, key: IdempotencyKey | None) -> Exchange:
    assert key is not None
    exchange = await services.exchanges.find(owner, key)
    _ring(services, exchange)  # nobody knows whether the first request came so far
    return exchange


def _ring(services: Services, exchange: Exchange) -> None:
    services.wake()
    services.chat_wakeups.notify(exchange.assistant_turn.chat_id)


def _request_of(turn: Turn | None) -> TurnRequest:
    assert turn is not None
    assert turn.request is not None
    return turn.request


def _new_chat(services: Services, owner: str, new: NewChat) -> Chat:
    settings = checked_settings(services, new.settings, "chat.settings")
    now = datetime.now(UTC)
    return Chat(new_id(), owner, new.title, new.system_prompt, settings, created_at=now, updated_at=now)


def _title(new: NewTurn) -> str | None:
    words = next((block.text for block in new.blocks if isinstance(block, TextBlockIn)), "")
    line = " ".join(words.split())
    return line[: _TITLE_LENGTH - 1].rstrip() + "…" if len(line) > _TITLE_LENGTH else line or None


async def _leaf_of(request: Request, services: Services, chat: UUID) -> UUID | None:
    """The turn that the client names, or the newest one behind it."""
    if through := _turn_in_query(request, "through"):
        return await services.turns.newest_through(chat, through) or through
    return _turn_in_query(request, "leaf")


def _turn_in_query(request: Request, name: str) -> UUID | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise RequestRefused("is the id of a turn", field=name) from None


async def _answer(request: Request, services: Services, owner: str, exchange: Exchange) -> Response:
    """The exchange, or its stream where the client asks for one. The same for the first request and its repetition."""
    turn = exchange.assistant_turn
    if request.headers.get("accept", "").startswith("text/event-stream"):
        return stream_response(services, owner, turn)
    body = ExchangeOut(
        user_turn=None if exchange.steered else turn_out(exchange.user_turn, services),
        assistant_turn=turn_out(turn, services),
        stream_url=stream_url(turn.chat_id, turn.id),
        steered=exchange.steered,
    )
    if exchange.steered:
        return json_response(body, 202)
    return json_response(body, 201, {"Location": f"/api/chats/{turn.chat_id}/turns/{turn.id}"})


async def _page(services: Services, path: list[Turn], standing: ChatState) -> Response:
    siblings = await services.turns.siblings([turn.id for turn in path])
    turns = [turn_out(turn, services, siblings[turn.id]) for turn in path]
    cursor = cursor_behind(standing, turns)
    return json_response(PathPage(turns=turns, next=path[0].parent_id if path else None, cursor=cursor))

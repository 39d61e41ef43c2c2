"""Turns: say something, read what was said, stop it, ask again."""

from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from app.api.chats import checked_settings, json_response
from app.api.resolve import again, resolve
from app.api.schemas import ExchangeOut, NewChat, NewTurn, NewTurnInNewChat, PathPage, SiblingsOut, TurnOptions
from app.api.services import Services, begin, id_of, idempotency_key_of, limit_of, read_body
from app.api.stream import stream_response
from app.api.views import stream_url, turn_out
from app.domain.blocks import Block
from app.domain.cursor import START
from app.domain.errors import Conflict, NotFound, RequestRefused
from app.domain.ids import new_id
from app.domain.turns import Turn
from app.storage.chats import Chat
from app.storage.exchanges import IdempotencyKey, Made, NewExchange

_TITLE_LENGTH = 60


async def create_turn(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    new, body = await read_body(request, NewTurn)
    key = idempotency_key_of(request, body)
    made = await _found(services, owner, key)
    if made is None:
        exchange = await _in_chat(services, owner, chat, new)
        made = await services.exchanges.create(exchange, key)
    return await _answer(request, services, owner, made)


async def create_turn_in_new_chat(request: Request) -> Response:
    services, owner = await begin(request)
    new, body = await read_body(request, NewTurnInNewChat)
    key = idempotency_key_of(request, body)
    made = await _found(services, owner, key)
    if made is None:
        made = await services.exchanges.create(_in_new_chat(services, owner, new), key)
    return await _answer(request, services, owner, made)


async def regenerate(request: Request) -> Response:
    services, owner = await begin(request)
    options, body = await read_body(request, TurnOptions)
    key = idempotency_key_of(request, body)
    made = await _found(services, owner, key)
    if made is None:
        turn = await _answer_of(services, owner, request)
        assert turn.request is not None
        assert turn.parent_id is not None
        asked = again(options, turn.request, services.models, services.toolset)
        made = await services.exchanges.regenerate(owner, turn.chat_id, turn.parent_id, asked, key)
    return await _answer(request, services, owner, made)


async def cancel(request: Request) -> Response:
    services, owner = await begin(request)
    turn = await services.turns.cancel(owner, id_of(request, "chat"), id_of(request, "turn"))
    services.cancel(turn.id)
    services.ring()
    return json_response(turn_out(turn, services.directory), 200 if turn.ended else 202)


async def get_path(request: Request) -> Response:
    services, owner = await begin(request)
    chat = id_of(request, "chat")
    await services.chats.get(owner, chat)
    limit = limit_of(request, default=100, most=500)
    leaf = _leaf_of(request) or await services.turns.newest(owner, chat)
    path = await services.turns.path(owner, chat, leaf, limit) if leaf else []
    return await _page(services, path)


async def get_path_of_turn(request: Request) -> Response:
    services, owner = await begin(request)
    limit = limit_of(request, default=100, most=500)
    path = await services.turns.path(owner, id_of(request, "chat"), id_of(request, "turn"), limit)
    return await _page(services, path)


async def get_turn(request: Request) -> Response:
    services, owner = await begin(request)
    turn = await services.turns.get(owner, id_of(request, "chat"), id_of(request, "turn"))
    siblings = await services.turns.siblings([turn.id])
    return json_response(turn_out(turn, services.directory, siblings[turn.id]))


async def get_siblings(request: Request) -> Response:
    services, owner = await begin(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")
    await services.turns.get(owner, chat, turn)
    siblings = await services.turns.siblings([turn])
    turns = await services.turns.several(owner, chat, siblings[turn])
    return json_response(SiblingsOut(turns=[turn_out(turn, services.directory) for turn in turns]))


# --- the parts -------------------------------------------------------------------------------------------------------


async def _found(services: Services, owner: str, key: IdempotencyKey | None) -> Made | None:
    return await services.exchanges.find(owner, key) if key else None


async def _in_chat(services: Services, owner: str, chat_id: UUID, new: NewTurn) -> NewExchange:
    chat = await services.chats.get(owner, chat_id)
    follows_newest = "parent_id" not in new.model_fields_set
    parent = await _parent(services, chat, new.parent_id, follows_newest)
    before = parent.request if parent else None
    return NewExchange(
        owner=owner,
        chat=chat.id,
        parent=parent.id if parent else None,
        blocks=_blocks(new),
        request=resolve(new, chat, before, services.defaults, services.models, services.toolset),
        title=_title(new),
        follows_newest=follows_newest,
    )


async def _parent(services: Services, chat: Chat, named: UUID | None, follows_newest: bool) -> Turn | None:
    identity = await services.turns.newest(chat.owner, chat.id) if follows_newest else named
    if identity is None:
        return None
    try:
        parent = await services.turns.get(chat.owner, chat.id, identity)
    except NotFound as error:
        raise RequestRefused(error.detail, field="parent_id") from None
    if parent.role == "user":
        raise RequestRefused("a user turn follows an assistant turn, and this is a user turn", field="parent_id")
    return parent


def _in_new_chat(services: Services, owner: str, new: NewTurnInNewChat) -> NewExchange:
    chat = _new_chat(services, owner, new.chat)
    return NewExchange(
        owner=owner,
        chat=chat.id,
        parent=None,
        blocks=_blocks(new),
        request=resolve(new, chat, None, services.defaults, services.models, services.toolset),
        title=_title(new),
        new_chat=chat,
    )


def _new_chat(services: Services, owner: str, new: NewChat) -> Chat:
    settings = checked_settings(services, new.settings)
    now = datetime.now(UTC)
    return Chat(new_id(), owner, new.title, new.system_prompt, settings, created_at=now, updated_at=now)


def _blocks(new: NewTurn) -> tuple[Block, ...]:
    return tuple(Block(index, 0, 0, block.type, block.text) for index, block in enumerate(new.blocks))


def _title(new: NewTurn) -> str:
    line = " ".join(new.blocks[0].text.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"


def _leaf_of(request: Request) -> UUID | None:
    text = request.query_params.get("leaf")
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise RequestRefused("is the id of a turn", field="leaf") from None


async def _answer_of(services: Services, owner: str, request: Request) -> Turn:
    turn = await services.turns.get(owner, id_of(request, "chat"), id_of(request, "turn"))
    if turn.role == "user":
        raise Conflict("a user turn cannot be generated again; name the assistant turn that answers it")
    return turn


async def _answer(request: Request, services: Services, owner: str, made: Made) -> Response:
    """The exchange, or its stream where the client asks for one. The same for the first request and its repetition."""
    services.ring()
    turn = await services.turns.get(owner, made.chat, made.turn)
    location = stream_url(made.chat, made.turn)
    if request.headers.get("accept", "").startswith("text/event-stream"):
        return stream_response(services, owner, turn, START)
    assert turn.parent_id is not None
    user_turn = await services.turns.get(owner, made.chat, turn.parent_id)
    body = ExchangeOut(
        user_turn=turn_out(user_turn, services.directory),
        assistant_turn=turn_out(turn, services.directory),
        stream_url=location,
    )
    return json_response(body, 201, {"Location": location.removesuffix("/stream")})


async def _page(services: Services, path: list[Turn]) -> Response:
    siblings = await services.turns.siblings([turn.id for turn in path])
    turns = [turn_out(turn, services.directory, siblings[turn.id]) for turn in path]
    return json_response(PathPage(turns=turns, next=path[0].parent_id if path else None))

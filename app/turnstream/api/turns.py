"""Handlers of turns: post, read, cancel, generate again."""

from collections.abc import Sequence
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import check_named
from turnstream.api.codec import to_json
from turnstream.api.exchange import cancel_turn, generate_again, post_in_new_chat, post_message
from turnstream.api.http.reading import id_in_query, id_of, idempotency_key_of, limit_of, read_body
from turnstream.api.reads import ReadStorage
from turnstream.api.schemas.requests import NewTurn, NewTurnInNewChat, TurnOptions
from turnstream.api.schemas.responses import TurnOut
from turnstream.api.services import Services, path_for, services_and_owner
from turnstream.api.streams.turn import stream_response
from turnstream.api.views import ShownTurn, shown_turn
from turnstream.domain.chats import Chat
from turnstream.domain.cursor import Cursor
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.turns import ENDED, Turn
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.kit.offload import Portions
from turnstream.storage.chats.chat_changes import ChatState, place_of
from turnstream.storage.chats.exchanges import Exchange, Parent, Target
from turnstream.stream.chat_cursor import ChatCursor


def services_to_post(request: Request) -> tuple[Services, str]:
    """Returns the services and the owner. Reserves a slot for the answer's stream if the client requests a stream."""
    services, owner = services_and_owner(request)
    if _wants_stream(request):
        services.streams.take(request)
    return services, owner


def _wants_stream(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("text/event-stream")


async def create_turn(request: Request) -> Response:
    services, owner = services_to_post(request)
    chat = id_of(request, "chat")
    new, body = await read_body(request, NewTurn)
    key = idempotency_key_of(request, body)
    parent: Parent = new.parent_id if "parent_id" in new.model_fields_set else "newest"
    exchange = await post_message(services, new, Target(owner, chat, parent, new.on_busy), key)
    return await exchange_response(request, services, owner, exchange)


async def create_turn_in_new_chat(request: Request) -> Response:
    services, owner = services_to_post(request)
    new, body = await read_body(request, NewTurnInNewChat)
    key = idempotency_key_of(request, body)
    check_named(new.chat, "chat.")
    check_named(new.chat.settings, "chat.settings.")
    settings = await services.resolver.new_settings(owner, new.chat.settings, "chat.settings")
    now = CLOCK.now()
    chat = Chat(new_id(), owner, new.chat.title, new.chat.system_prompt, settings, created_at=now, updated_at=now)
    exchange = await post_in_new_chat(services, new, chat, key)
    return await exchange_response(request, services, owner, exchange)


async def regenerate(request: Request) -> Response:
    services, owner = services_to_post(request)
    chat, turn = id_of(request, "chat"), id_of(request, "turn")
    options, body = await read_body(request, TurnOptions)
    key = idempotency_key_of(request, body)
    exchange = await generate_again(services, owner, chat, turn, options, key)
    return await exchange_response(request, services, owner, exchange)


async def cancel(request: Request) -> Response:
    services, owner = services_and_owner(request)
    turn = await cancel_turn(services, owner, id_of(request, "chat"), id_of(request, "turn"))
    return await shown_turn(turn, services).response(200 if turn.ended else 202)


async def get_path(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, limit = id_of(request, "chat"), limit_of(request, default=100, most=500)
    leaf, through, before, after = (id_in_query(request, name) for name in ("leaf", "through", "before", "after"))
    if before and (leaf or through or after):
        raise RequestRefused("`before` excludes `leaf`, `through` and `after`: a turn has one path.", field="before")
    newest_of = through or (None if leaf else after)

    async def read(storage: ReadStorage) -> Response:
        await storage.chats.get(owner, chat)
        while True:
            state, following, last = await storage.chat_changes.state(chat), None, leaf
            if newest_of:
                last = await storage.turns.newest_through(chat, newest_of) or newest_of
            end = before or last or state.newest
            try:
                if after and end:
                    path, more = await storage.turns.path_after(owner, chat, after, end, limit)
                    following = path[-1].id if more else None
                else:
                    path = await storage.turns.path(owner, chat, end, limit + bool(before)) if end else []
            except NotFound:
                if end != state.newest or last or before:
                    raise
                continue  # the newest turn was deleted meanwhile
            if before:
                path = path[:-1]
                following = path[-1].id if path else None
            # The cursor does not cover a leaf that is newer than the state: then the state and the path are read again.
            if not path or place_of(path[-1]) <= state.last:
                return await path_page(services, storage, path, state, following)

    return await services.reads.read(request, read)


async def get_turn(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat, id = id_of(request, "chat"), id_of(request, "turn")

    async def read(storage: ReadStorage) -> ShownTurn:
        turn = await storage.turns.get(owner, chat, id)
        storage.finished(turn)
        siblings = await storage.turns.siblings([turn.id])
        return shown_turn(turn, services, siblings[turn.id])

    return await (await services.reads.read(request, read)).response()


async def exchange_response(request: Request, services: Services, owner: str, exchange: Exchange) -> Response:
    """Returns the exchange, or the answer's stream on request. A repeated request gets the first exchange again."""
    turn, portions = exchange.assistant_turn, Portions()
    url = path_for(request, f"/api/chats/{turn.chat_id}/turns/{turn.id}")
    if _wants_stream(request):
        return stream_response(services, owner, turn)
    said = None if exchange.steered else await shown_turn(exchange.user_turn, services).encoded(portions)
    body = {
        "user_turn": said,
        "assistant_turn": await shown_turn(turn, services).encoded(portions),
        "stream_url": f"{url}/stream",
        "steered": exchange.steered,
    }
    status, headers = (202, {}) if exchange.steered else (201, {"Location": url})
    return Response(to_json(body), status, headers, media_type="application/json")


async def path_page(
    services: Services, storage: ReadStorage, path: list[Turn], state: ChatState, following: UUID | None = None
) -> Response:
    storage.finished(*path)
    siblings = await storage.turns.siblings([turn.id for turn in path])
    turns, bodies, portions = [], [], Portions()
    for turn in path:
        shown = shown_turn(turn, services, siblings[turn.id])
        turns.append(shown.out)
        bodies.append(await shown.encoded(portions))
    page = {
        "turns": bodies,
        "next": path[0].parent_id if path else None,
        "following": following,
        "cursor": _cursor_behind(state, turns),
    }
    return Response(to_json(page), media_type="application/json")


def _cursor_behind(state: ChatState, shown: Sequence[TurnOut]) -> str:
    """Returns the cursor of a page with the turns `shown`, which were read after `state` and are not newer than
    `state`.

    A stream from this cursor sends the chat, the open turns that the page lacks, and later events of the page's turns.
    """
    cursors = {turn.id: None if turn.status in ENDED else turn.cursor for turn in shown}
    opened: dict[int, Cursor | None] = {}
    for turn, place in state.open.items():
        if turn not in cursors:
            opened[place] = None
        elif cursor := cursors[turn]:
            opened[place] = Cursor.parse(cursor)
    return str(ChatCursor(state.last, "", opened))

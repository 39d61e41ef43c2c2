"""Handlers of OpenAI's conversations: a conversation is a chat; its items are on the path to the newest turn."""

from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import limit_of, read_body
from turnstream.api.schemas.requests import ChatSettings
from turnstream.api.services import Services, count_writes, identity_of, services_and_owner
from turnstream.domain.chats import Chat
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.history import PLACE, past_items
from turnstream.extensions.openai_api.inputs import items_of
from turnstream.extensions.openai_api.items import is_placeholder, items_of_path
from turnstream.extensions.openai_api.objects import Json, chat_of_conversation, conversation_id, turn_of_item
from turnstream.extensions.openai_api.responses import item_page
from turnstream.extensions.openai_api.schemas import ConversationBody, ItemsIn
from turnstream.libraries.copies.cutting import cut_after
from turnstream.libraries.copies.rows import Fork, Forks
from turnstream.libraries.dialects.chats import checked_turn, new_chat
from turnstream.libraries.dialects.histories import history_of
from turnstream.libraries.dialects.past_exchanges import histories_of
from turnstream.libraries.dialects.unstored import delete_turn


async def create_conversation(request: Request) -> Response:
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, ConversationBody)
    settings = services.resolver.changed_settings({}, ChatSettings(labels=sent.metadata) if sent.metadata else None)
    history = history_of(services, owner, past_items(items_of(sent.items)), PLACE)
    await count_writes(services, owner, history.exchanges)
    chat = new_chat(owner, settings=settings)
    request_of_chat = services.resolver.resolve(checked_turn({"blocks": [{"type": "text", "text": "…"}]}), chat, None)
    await histories_of(services).record_in_new_chat(chat, await history.load(), request_of_chat)
    services.live.notify(owner, chat.id)
    return _conversation(chat)


async def get_conversation(request: Request) -> Response:
    services, owner = services_and_owner(request)
    return _conversation(await _chat_of(request, services, owner))


async def change_conversation(request: Request) -> Response:
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, ConversationBody)
    if sent.items is not None:
        raise RequestRefused("`items` must be left out: add them by POST …/items.", field="items")
    chat = await _chat_of(request, services, owner)
    changes = ChatSettings(labels=sent.metadata)

    def changed(now: Chat) -> dict[str, Any]:
        return {"settings": {**services.resolver.changed_settings(now.settings, changes)}}

    chat = await services.storage.chats.change(owner, chat.id, changed)
    services.live.notify(owner, chat.id)
    return _conversation(chat)


async def delete_conversation(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat = await _chat_of(request, services, owner)
    for turn in await services.storage.chats.delete(owner, chat.id):
        await services.live.cancel(turn)
    services.live.notify(owner, chat.id)
    body = {"id": conversation_id(chat.id), "object": "conversation.deleted", "deleted": True}
    return Response(to_json(body), media_type="application/json")


# --- items -----------------------------------------------------------------------------------------------------------


async def list_items(request: Request) -> Response:
    """Returns a page of items. Each exchange has at least one item, so the page size also limits the exchanges."""
    services, owner = services_and_owner(request)
    chat = await _chat_of(request, services, owner)
    turns, limit = services.storage.turns, limit_of(request, 20, 100)
    newest = await turns.newest(owner, chat.id)
    if newest is None:
        return item_page(request, [])
    after = turn_of_item(request.query_params.get("after"))
    most = 2 * limit + 2
    if request.query_params.get("order", "desc") == "asc":
        first = after[1] if after else await turns.root(chat.id, newest)
        assert first is not None
        following, more = await turns.path_after(owner, chat.id, first, newest, most)
        path = [await turns.get(owner, chat.id, first), *following]
    else:
        path = await turns.path(owner, chat.id, after[1] if after else newest, most)
        more = path[0].parent_id is not None
    return item_page(request, await items_of_path(path), more=more)


async def add_items(request: Request) -> Response:
    """Adds the exchanges of another history after the newest turn."""
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, ItemsIn)
    chat = await _chat_of(request, services, owner)
    history = history_of(services, owner, past_items(items_of(sent.items)), PLACE)
    await count_writes(services, owner, history.exchanges)
    exchanges = await history.load()
    request_of_chat = services.resolver.resolve(checked_turn({"blocks": [{"type": "text", "text": "…"}]}), chat, None)
    last = await histories_of(services).record(owner, chat.id, exchanges, request_of_chat)
    services.live.notify(owner, chat.id)
    path = await services.storage.turns.path(owner, chat.id, last, 2 * len(exchanges)) if last and exchanges else []
    added = await items_of_path(path)
    ends = {"first_id": added[0]["id"] if added else None, "last_id": added[-1]["id"] if added else None}
    return Response(
        to_json({"object": "list", "data": added, **ends, "has_more": False}), media_type="application/json"
    )


async def get_item(request: Request) -> Response:
    services, owner = services_and_owner(request)
    turn = await _turn_of_item(request, services, owner)
    for item in await items_of_path([turn]):
        if item["id"] == request.path_params["item"]:
            return Response(to_json(item), media_type="application/json")
    raise _no_item(request)


async def delete_item(request: Request) -> Response:
    """Deletes a message of the user together with its answer and all following turns, or deletes only the last item of
    the conversation.
    """
    services, owner = services_and_owner(request)
    turn = await _turn_of_item(request, services, owner)
    if turn.role == "user":
        await delete_turn(services, owner, turn)
    else:
        await _delete_last(request, services, owner, turn)
    return _conversation(await services.storage.chats.get(owner, turn.chat_id))


async def _delete_last(request: Request, services: Services, owner: str, turn: Turn) -> None:
    """Replaces the answer by a copy without its last item, because the rows of a turn never change."""
    items, newest = await items_of_path([turn]), await services.storage.turns.newest(owner, turn.chat_id)
    if newest != turn.id or not items or items[-1]["id"] != request.path_params["item"]:
        detail = "`item` must be the last item, or a message of the user, which is deleted with all that follows."
        raise RequestRefused(detail, field="item")
    if turn.asks:  # a copy would not record who answered the calls
        detail = (
            "`item` must be a message of the user: this one is of an answer with calls that its client has answered."
        )
        raise RequestRefused(detail, field="item")
    (_, _, index), parent = turn_of_item(items[-1]["id"]) or (None, None, None), turn.parent_id
    assert index is not None
    assert parent is not None
    if len(items) > 1 or not is_placeholder(await services.storage.turns.get(owner, turn.chat_id, parent)):
        await Forks(services.storage.of_owner).make(owner, Fork(cut_after(turn, index - 1), new_chat=False), None)
    await delete_turn(services, owner, turn)


async def _turn_of_item(request: Request, services: Services, owner: str) -> Turn:
    chat = await _chat_of(request, services, owner)
    found = turn_of_item(request.path_params["item"])
    if found is None or found[0] != chat.id:
        raise _no_item(request)
    try:
        return await services.storage.turns.get(owner, chat.id, found[1])
    except NotFound:
        raise _no_item(request) from None


def _no_item(request: Request) -> NotFound:
    return NotFound(f"There is no item {request.path_params['item']} in this conversation.")


async def _chat_of(request: Request, services: Services, owner: str) -> Chat:
    """Returns the chat of the named conversation. Raises NotFound."""
    name = request.path_params["conversation"]
    id: UUID | None = chat_of_conversation(name)
    if id is not None:
        identity_of(request).require_reach(id)
        try:
            return await services.storage.chats.get(owner, id)
        except NotFound:
            pass
    raise NotFound(f"There is no conversation {name}.")


def _conversation(chat: Chat) -> Response:
    body: Json = {
        "id": conversation_id(chat.id),
        "object": "conversation",
        "created_at": int(chat.created_at.timestamp()),
        "metadata": chat.settings.get("labels") or {},
    }
    return Response(to_json(body), media_type="application/json")

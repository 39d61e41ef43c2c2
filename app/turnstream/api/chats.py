"""Handlers of chats: create, list, read, change, delete."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.caller import check_named
from turnstream.api.http.reading import id_of, limit_of, read_body
from turnstream.api.reads import ReadStorage, search_or_refusal
from turnstream.api.schemas.requests import ChatChanges, NewChat
from turnstream.api.schemas.responses import ChatPage, Deleted
from turnstream.api.services import path_for, services_and_owner
from turnstream.api.views import chat_out, json_response, listed_chat
from turnstream.domain.chats import Chat
from turnstream.storage.chats.chats import page_behind, place_of_page


async def create_chat(request: Request) -> Response:
    services, owner = services_and_owner(request)
    new, _ = await read_body(request, NewChat)
    check_named(new)
    check_named(new.settings, "settings.")
    settings = await services.resolver.new_settings(owner, new.settings, "settings")
    chat = await services.storage.chats.create(owner, new.title, new.system_prompt, settings)
    services.recent_chats.keep(chat)
    services.live.notify_owner(owner)
    return json_response(chat_out(chat), 201, {"Location": path_for(request, f"/api/chats/{chat.id}")})


async def list_chats(request: Request) -> Response:
    services, owner = services_and_owner(request)
    limit = limit_of(request, default=50, most=200)
    before = request.query_params.get("before")
    if request.query_params.get("q", "").strip():
        return json_response(await search_or_refusal(services.storage.search).answer(request, limit))

    async def read(storage: ReadStorage) -> ChatPage:
        # The cursor is read before the chats, so that the feed from this cursor misses no change.
        feed = None if before else services.live.feed
        cursor = feed and await feed.cursor(services.storage.of_owner, storage.time)
        page = await storage.chats.page(owner, limit + 1, place_of_page(before))
        token = page_behind(page[limit - 1].chat) if len(page) > limit else None
        chats = [listed_chat(chat, jobs=jobs) for chat, jobs in page[:limit]]
        return ChatPage(chats=chats, next=token, cursor=cursor)

    return json_response(await services.reads.read(request, read))


async def get_chat(request: Request) -> Response:
    services, owner = services_and_owner(request)
    return json_response(chat_out(await services.storage.chats.get(owner, id_of(request, "chat"))))


async def change_chat(request: Request) -> Response:
    """Changes the members that the request contains, including those set to null. Omitted members do not change."""
    services, owner = services_and_owner(request)
    chat = id_of(request, "chat")
    changes, _ = await read_body(request, ChatChanges)
    check_named(changes)
    if changes.settings is not None:
        check_named(changes.settings, "settings.")

    settings = changes.settings and await services.resolver.sealed(owner, changes.settings, "settings.")

    def changed_members(chat: Chat) -> Mapping[str, Any]:
        sent = {name: getattr(changes, name) for name in changes.model_fields_set}
        if "settings" in sent:
            sent["settings"] = services.resolver.changed_settings(chat.settings, settings)
        return sent

    changed = await services.storage.chats.change(owner, chat, changed_members)
    services.live.notify(owner, chat)
    return json_response(chat_out(changed))


async def delete_chat(request: Request) -> Response:
    services, owner = services_and_owner(request)
    chat = id_of(request, "chat")
    for turn in await services.storage.chats.delete(owner, chat):
        await services.live.cancel(turn)
    services.live.notify(owner, chat)
    return json_response(Deleted(deleted=chat))

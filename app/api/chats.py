"""Handlers of chats: create, list, search, read, change, delete."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from app.api.http.errors import BadRequest
from app.api.http.reading import id_of, limit_of, read_body
from app.api.schemas.requests import ChatChanges, NewChat
from app.api.schemas.responses import ChatPage, Deleted
from app.api.services import begin, path_for
from app.api.views import chat_out, json_response, listed_chat
from app.domain.chats import Chat
from app.domain.errors import RequestRefused
from app.kit.text import unstorable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_SEARCH = 200
_MOST_WORDS = 8
_TOKEN = re.compile("([0-9]{1,16})_([0-9a-f]{32})")


async def create_chat(request: Request) -> Response:
    services, owner = begin(request)
    new, _ = await read_body(request, NewChat)
    settings = services.resolver.changed_settings({}, new.settings)
    chat = await services.storage.chats.create(owner, new.title, new.system_prompt, settings)
    services.live.feed.notify(owner)
    return json_response(chat_out(chat), 201, {"Location": path_for(request, f"/api/chats/{chat.id}")})


async def list_chats(request: Request) -> Response:
    services, owner = begin(request)
    limit = limit_of(request, default=50, most=200)
    before = request.query_params.get("before")
    position = _position(before) if before else None
    words = _words(request.query_params.get("q", ""))
    # Taken before the chats are read, so that the feed from there misses nothing.
    cursor = None if before or words else str(await services.live.feed.cursor())
    if words:
        hits = await services.storage.chats.search(owner, words, limit + 1, position)
        chats = [listed_chat(hit.chat, hit.excerpt) for hit in hits]
    else:
        chats = [listed_chat(chat) for chat in await services.storage.chats.page(owner, limit + 1, position)]
    last = chats[limit - 1] if len(chats) > limit else None
    token = last and f"{(last.updated_at - _EPOCH) // _MICROSECOND}_{last.id.hex}"
    return json_response(ChatPage(chats=chats[:limit], next=token, cursor=cursor))


async def get_chat(request: Request) -> Response:
    services, owner = begin(request)
    return json_response(chat_out(await services.storage.chats.get(owner, id_of(request, "chat"))))


async def change_chat(request: Request) -> Response:
    """Changes the members that are sent, null included; one that is left out stays."""
    services, owner = begin(request)
    chat = id_of(request, "chat")
    changes, _ = await read_body(request, ChatChanges)

    def changed_members(chat: Chat) -> Mapping[str, Any]:
        sent = {name: getattr(changes, name) for name in changes.model_fields_set}
        if "settings" in sent:
            sent["settings"] = services.resolver.changed_settings(chat.settings, changes.settings)
        return sent

    changed = await services.storage.chats.change(owner, chat, changed_members)
    services.live.notify(owner, chat)
    return json_response(chat_out(changed))


async def delete_chat(request: Request) -> Response:
    services, owner = begin(request)
    chat = id_of(request, "chat")
    for turn in await services.storage.chats.delete(owner, chat):
        await services.live.cancel(turn)
    services.live.notify(owner, chat)
    return json_response(Deleted(deleted=chat))


def _words(text: str) -> list[str]:
    """The words of a search. Raises RequestRefused."""
    if len(text) > _LONGEST_SEARCH:
        raise RequestRefused(f"`q` must have at most {_LONGEST_SEARCH} characters.", field="q")
    if problem := unstorable(text):
        raise RequestRefused(f"`q` {problem}, which no stored text does; search for other words.", field="q")
    words = list(dict.fromkeys(text.split()))
    if len(words) > _MOST_WORDS:
        raise RequestRefused(f"`q` must have at most {_MOST_WORDS} words.", field="q")
    return words


def _position(token: str) -> tuple[datetime, UUID]:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise BadRequest(
            "`before` must be the `next` of an earlier page; leave it out for the first page.", field="before"
        )
    return _EPOCH + int(found[1]) * _MICROSECOND, UUID(found[2])

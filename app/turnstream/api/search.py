"""Search of chats, and how the texts of an owner are indexed for it."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.errors import BadRequest
from turnstream.api.http.reading import read_body
from turnstream.api.reads import ReadStorage
from turnstream.api.schemas.requests import SearchSettingsIn
from turnstream.api.schemas.responses import ChatPage, SearchSettingsOut
from turnstream.api.services import services_and_owner
from turnstream.api.views import json_response, listed_chat
from turnstream.domain.errors import RequestRefused
from turnstream.kit.moments import from_microseconds, microseconds_of
from turnstream.kit.text import unstorable
from turnstream.storage.chats.search import NEWEST, Hit, SearchFilter, SearchPosition, SearchSettings

_LONGEST_SEARCH = 200
_MOST_WORDS = 8
# The window of a search, after an i where words are sought inside of others; and the hit behind which it continues.
_TOKEN = re.compile("(i?)(-?[0-9]{1,19})(?:_([0-9]{1,4})_([0-9]{1,16})_([0-9a-f]{32}))?")


async def search_page(request: Request, words: list[str], limit: int) -> ChatPage:
    """A page of the chats in which `words` are found."""
    services, owner = services_and_owner(request)
    before = request.query_params.get("before")
    position = _position(before) if before else SearchPosition()
    only = _filter(request)

    async def read(storage: ReadStorage) -> tuple[Sequence[Hit], SearchPosition | None]:
        await storage.indexed(owner)
        return await storage.search.page(owner, words, limit, position, only)

    hits, rest = await services.reads.read(request, read)
    chats = [listed_chat(hit.chat, hit.excerpt) for hit in hits]
    return ChatPage(chats=chats, next=rest and _token(rest), cursor=None)


async def get_search_settings(request: Request) -> Response:
    services, owner = services_and_owner(request)
    return json_response(_settings_out(await services.storage.search.settings(owner)))


async def put_search_settings(request: Request) -> Response:
    services, owner = services_and_owner(request)
    new, _ = await read_body(request, SearchSettingsIn)
    settings = SearchSettings(new.language, new.tool_results)
    await services.storage.search.change_settings(owner, settings)
    return json_response(_settings_out(settings))


def _settings_out(settings: SearchSettings) -> SearchSettingsOut:
    return SearchSettingsOut(language=settings.language, tool_results=settings.tool_results)


def words_of(request: Request) -> list[str]:
    """The words of a search. Raises RequestRefused."""
    text = request.query_params.get("q", "")
    if len(text) > _LONGEST_SEARCH:
        raise RequestRefused(f"`q` must have at most {_LONGEST_SEARCH} characters.", field="q")
    if problem := unstorable(text):
        raise RequestRefused(f"`q` {problem}, which no stored text does; search for other words.", field="q")
    words = list(dict.fromkeys(text.split()))
    if len(words) > _MOST_WORDS:
        raise RequestRefused(f"`q` must have at most {_MOST_WORDS} words.", field="q")
    return words


def _filter(request: Request) -> SearchFilter:
    tools, chat = request.query_params.get("tools", "false"), request.query_params.get("chat")
    if tools not in {"true", "false"}:
        raise RequestRefused("`tools` must be true or false.", field="tools")
    try:
        only = UUID(chat) if chat else None
    except ValueError:
        raise RequestRefused("`chat` must be the id of a chat.", field="chat") from None
    return SearchFilter(tools == "true", _moment_in(request, "since"), _moment_in(request, "until"), only)


def _moment_in(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestRefused(
            f"`{name}` must be a day or a time, such as 2026-11-01 or 2026-11-01T09:30:00Z.", field=name
        ) from None


def _token(position: SearchPosition) -> str:
    window = f"{'i' if position.inside else ''}{position.first}"
    if position.behind is None:
        return window
    score, when, chat = position.behind
    return f"{window}_{score}_{microseconds_of(when)}_{chat.hex}"


def _position(token: str) -> SearchPosition:
    found = _TOKEN.fullmatch(token)
    if found is None or not -NEWEST <= int(found[2]) <= NEWEST:
        raise of_no_page()
    behind = (int(found[3]), from_microseconds(int(found[4])), UUID(found[5])) if found[3] else None
    return SearchPosition(int(found[2]), behind, bool(found[1]))


def of_no_page() -> BadRequest:
    return BadRequest(
        "`before` must be the `next` of an earlier page; leave it out for the first page.", field="before"
    )

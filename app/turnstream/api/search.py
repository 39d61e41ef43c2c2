"""Search of chats."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request

from turnstream.api.http.reading import flag_of
from turnstream.api.reads import ReadStorage
from turnstream.api.schemas.responses import ChatPage
from turnstream.api.services import services_and_owner
from turnstream.api.views import listed_chat
from turnstream.domain.errors import RequestRefused
from turnstream.kit.text import unstorable
from turnstream.storage.chats.search import Hit, SearchFilter

_LONGEST_SEARCH = 200
_MOST_WORDS = 8


async def search_page(request: Request, words: list[str], limit: int) -> ChatPage:
    """A page of the chats in which `words` are found."""
    services, owner = services_and_owner(request)
    before = request.query_params.get("before")
    only = _filter(request)

    async def read(storage: ReadStorage) -> tuple[Sequence[Hit], str | None]:
        await storage.indexed(owner)
        return await storage.search.page(owner, words, limit, before, only)

    hits, rest = await services.reads.read(request, read)
    chats = [listed_chat(hit.chat, hit.excerpt) for hit in hits]
    return ChatPage(chats=chats, next=rest, cursor=None)


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
    tools, chat = flag_of(request, "tools"), request.query_params.get("chat")
    try:
        only = UUID(chat) if chat else None
    except ValueError:
        raise RequestRefused("`chat` must be the id of a chat.", field="chat") from None
    return SearchFilter(tools, _moment_in(request, "since"), _moment_in(request, "until"), only)


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

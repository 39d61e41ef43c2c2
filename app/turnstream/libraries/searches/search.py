"""The interface of extensions that search chats and documents."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import UUID

from starlette.requests import Request

from turnstream.api.http.reading import flag_of
from turnstream.api.reads import ReadStorage, search_or_refusal
from turnstream.api.schemas.responses import ChatPage, ExcerptOut, PieceOut
from turnstream.api.services import Services, services_and_owner
from turnstream.api.views import listed_chat
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.kit.text import unstorable
from turnstream.storage.database import Database
from turnstream.storage.owners.documents import DocumentInfo

_LONGEST_SEARCH = 200
_MOST_WORDS = 8


@dataclass(frozen=True, slots=True)
class ExcerptPiece:
    """A part of a text. `found` is true if the part is one of the searched words."""

    text: str
    found: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An excerpt of a text in `turn`. If `turn` is None, the excerpt is the whole title of the chat."""

    turn: UUID | None
    pieces: tuple[ExcerptPiece, ...]


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Filters the texts of a search. `tools` includes results of tools. `since` and `until` limit the time of a
    message; for a title, they limit the time of its chat. `chat` limits the search to one chat.
    """

    tools: bool = False
    since: datetime | None = None
    until: datetime | None = None
    chat: UUID | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A found chat, with an excerpt."""

    chat: Chat
    excerpt: Excerpt


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A found document. `pieces` are an excerpt of its text, or its path if its text has none of the words."""

    info: DocumentInfo
    pieces: Sequence[ExcerptPiece]


class TextSearch(ABC):
    """Searches chats and documents. Extensions implement the abstract methods."""

    @abstractmethod
    def on(self, database: Database) -> Self:
        """Returns the same search on another database. Both searches share the slots of this replica."""

    @abstractmethod
    async def is_complete(self, owner: str) -> bool:
        """Returns whether a search can find all texts of the owner's chats."""

    @abstractmethod
    async def page(
        self, owner: str, words: Sequence[str], limit: int, before: str | None, only: SearchFilter
    ) -> tuple[Sequence[Hit], str | None]:
        """Returns the best chats that contain all `words`, and the name of the next page. A page may have fewer than
        `limit` chats even if more chats follow. `before` is the name of the requested page. Raises NoSuchPage, and
        RequestRefused when the search takes too long.
        """

    @abstractmethod
    async def documents(self, owner: str, words: Sequence[str], prefix: str, limit: int) -> Sequence[FoundDocument]:
        """Returns the best documents whose path or text contains all `words`. Raises RequestRefused when the search
        takes too long.
        """

    async def answer(self, request: Request, limit: int) -> ChatPage:
        """Returns the chats that the request's `q` finds. Raises RequestRefused."""
        services, owner = services_and_owner(request)
        words, only = words_of(request), _filter(request)
        before = request.query_params.get("before")

        async def read(storage: ReadStorage) -> tuple[Sequence[Hit], str | None]:
            await storage.indexed(owner)
            search = storage.search
            assert isinstance(search, TextSearch)
            return await search.page(owner, words, limit, before, only)

        hits, rest = await services.reads.read(request, read)
        chats = [listed_chat(hit.chat, _excerpt_out(hit.excerpt)) for hit in hits]
        return ChatPage(chats=chats, next=rest, cursor=None)


def text_search(services: Services) -> TextSearch:
    """Returns the search of this server. Raises RequestRefused if the server has no search."""
    search = search_or_refusal(services.storage.search)
    assert isinstance(search, TextSearch)
    return search


def _excerpt_out(excerpt: Excerpt) -> ExcerptOut:
    return ExcerptOut(turn=excerpt.turn, pieces=[PieceOut(text=each.text, found=each.found) for each in excerpt.pieces])


def words_of(request: Request) -> list[str]:
    """Returns the words of the request's `q`. Raises RequestRefused."""
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

"""Search of chats and documents. Extensions have one; the core only asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.storage.database import Database
from turnstream.storage.owners.documents import DocumentInfo


@dataclass(frozen=True, slots=True)
class ExcerptPiece:
    """A part of a text; `found` if it is one of the words."""

    text: str
    found: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An excerpt of a text in `turn`; the whole title of the chat if that is None."""

    turn: UUID | None
    pieces: tuple[ExcerptPiece, ...]


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """The texts that are searched. `tools` includes results of tools. `since` and `until` limit the time of a message,
    and for a title the time of its chat. `chat` limits the search to one chat.
    """

    tools: bool = False
    since: datetime | None = None
    until: datetime | None = None
    chat: UUID | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chat that was found, with an excerpt."""

    chat: Chat
    excerpt: Excerpt


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document that a person has found. The pieces are its path if its text has none of the words."""

    info: DocumentInfo
    pieces: Sequence[ExcerptPiece]


class Search(Protocol):
    """The search of an extension. It may be on a standby."""

    def on(self, database: Database) -> "Search":
        """The search of another database. Both share the places that this replica has."""
        ...

    async def is_complete(self, owner: str) -> bool:
        """Whether all texts in the owner's chats can be found."""
        ...

    async def page(
        self, owner: str, words: Sequence[str], limit: int, before: str | None, only: SearchFilter
    ) -> tuple[Sequence[Hit], str | None]:
        """The best chats in which each of `words` is found, and the name of the next page. A page may have fewer than
        `limit` although there are more. `before` is the name of a page. Raises NoSuchPage, and RequestRefused when the
        search takes too long.
        """
        ...

    async def documents(self, owner: str, words: Sequence[str], prefix: str, limit: int) -> Sequence[FoundDocument]:
        """The best documents in which each of `words` is found, in the path or the text. Raises RequestRefused when the
        search takes too long.
        """
        ...


class NoSearch:
    """The search of a server without an extension that has one."""

    def on(self, database: Database) -> Search:  # noqa: ARG002
        return self

    async def is_complete(self, owner: str) -> bool:  # noqa: ARG002
        return True

    async def page(self, *_: object, **__: object) -> tuple[Sequence[Hit], str | None]:
        raise _not_here()

    async def documents(self, *_: object, **__: object) -> Sequence[FoundDocument]:
        raise _not_here()


def _not_here() -> RequestRefused:
    return RequestRefused(
        "`q` must be left out: this server has neither of the extensions `search` and `simple_search`.", field="q"
    )

"""Reads on a standby if the client accepts an answer that is some seconds old, otherwise on the primary."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from starlette.requests import Request

from turnstream.api.schemas.responses import ChatPage
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Turn
from turnstream.storage.chats.chat_changes import ChatUpdates
from turnstream.storage.chats.chats import ChatReads
from turnstream.storage.chats.turns import TurnReads
from turnstream.storage.database import Database

T = TypeVar("T")


class Search(Protocol):
    """The search that an extension provides. It may run on a copy of the database."""

    def on(self, database: Database) -> "Search":
        """Returns the same search on another database. Both searches share the slots for searches on this replica."""
        ...

    async def is_complete(self, owner: str) -> bool:
        """Whether all texts in the owner's chats can be found."""
        ...

    async def answer(self, request: Request, limit: int) -> ChatPage:
        """Returns the chats that match the `q` of the request. Raises RequestRefused."""
        ...


def search_or_refusal(search: Search | None) -> Search:
    """Returns `search`. Raises RequestRefused if the server has no search."""
    if search is None:
        detail = "`q` must be left out: this server has neither of the extensions `search` and `simple_search`."
        raise RequestRefused(detail, field="q")
    return search


class ReadCopy(Protocol):
    """A copy of the database. An extension provides the copy, and decides which requests the copy answers."""

    async def read(self, request: Request, primary: "ReadStorage", work: "Callable[[ReadStorage], Awaitable[T]]") -> T:
        """Returns the result of `work` on the copy. If the copy refuses or fails, `work` is called on the primary."""
        ...


class NotOnStandby(RequestRefused):
    """The primary must answer, for one of three reasons. The standby is `behind` by more than the operator allows, the
    client requires a state that is `too_recent` for the standby, or a turn or a search index is `unfinished` there.
    """


@dataclass(frozen=True, slots=True)
class ReadStorage:
    """Repositories for reads. On a standby, all of them read one snapshot, which has every commit before `time`."""

    chats: ChatReads
    chat_changes: ChatUpdates
    search: Search | None
    turns: TurnReads
    time: datetime | None = None

    def finished(self, *turns: Turn) -> None:
        """Raises NotOnStandby if the standby lacks the end of one of the turns."""
        if self.time is not None and not all(turn.ended for turn in turns):
            raise NotOnStandby("unfinished")

    async def indexed(self, owner: str) -> None:
        """Raises NotOnStandby if the standby has texts of the owner that a search there would not find."""
        if self.time is not None and self.search is not None and not await self.search.is_complete(owner):
            raise NotOnStandby("unfinished")


class Reads:
    """Reads for requests, on a copy of the database if the server has one."""

    def __init__(self, primary: ReadStorage, copy: ReadCopy | None) -> None:
        self._primary = primary
        self._copy = copy

    async def read(self, request: Request, work: Callable[[ReadStorage], Awaitable[T]]) -> T:
        if self._copy is None:
            return await work(self._primary)
        return await self._copy.read(request, self._primary, work)

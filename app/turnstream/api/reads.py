"""Reads on a standby, if the client accepts that the answer is some seconds old; else on the primary."""

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from starlette.requests import Request

from turnstream.domain.errors import RequestRefused, StorageError
from turnstream.domain.turns import Turn
from turnstream.storage.chats.chat_changes import ChatUpdates
from turnstream.storage.chats.chats import ChatReads
from turnstream.storage.chats.search import Search
from turnstream.storage.chats.turns import TurnReads
from turnstream.storage.database import Database
from turnstream.telemetry import STANDBY_READS

T = TypeVar("T")


class Moment(Protocol):
    """One snapshot of a copy. It has all that was committed `age` seconds ago, and that was before `time` of the
    database.
    """

    @property
    def age(self) -> float: ...

    @property
    def time(self) -> datetime | None: ...

    @property
    def database(self) -> Database: ...


class ReadCopy(Protocol):
    """A copy of the database. An extension has it. Its answers are at most `staleness` seconds old."""

    @property
    def staleness(self) -> float: ...

    def moment(self) -> AbstractAsyncContextManager[Moment]:
        """Raises StorageError."""
        ...


class NotOnStandby(RequestRefused):
    """The primary is asked, for this reason: the standby is `behind`, or `too_recent` a change for it; or it has
    something `unfinished`, a turn or the index of a search.
    """


@dataclass(frozen=True, slots=True)
class ReadStorage:
    """Repositories that only read. On a standby they have one moment, and all commits from before `time`."""

    chats: ChatReads
    chat_changes: ChatUpdates
    search: Search
    turns: TurnReads
    time: datetime | None = None

    def finished(self, *turns: Turn) -> None:
        """Raises NotOnStandby if the standby has one of the turns as it was before its end."""
        if self.time is not None and not all(turn.ended for turn in turns):
            raise NotOnStandby("unfinished")

    async def indexed(self, owner: str) -> None:
        """Raises NotOnStandby if the standby has texts of the owner that a search there would not find."""
        if self.time is not None and not await self.search.is_complete(owner):
            raise NotOnStandby("unfinished")


class Reads:
    """The answers of a standby are at most as old as it allows, and as the client accepts."""

    def __init__(self, primary: ReadStorage, standby: ReadCopy | None) -> None:
        self._primary = primary
        self._standby = standby

    async def read(self, request: Request, work: Callable[[ReadStorage], Awaitable[T]]) -> T:
        """Returns the result of `work` on the standby. If the standby refuses or fails, `work` is called again on the
        primary. A response from the standby has the header `Age`.
        """
        accepted = accepted_staleness(request)
        if self._standby is None or not accepted:
            return await work(self._primary)
        try:
            async with self._standby.moment() as moment:
                staleness = self._standby.staleness
                if moment.age > min(accepted, staleness):
                    raise NotOnStandby("behind" if moment.age > staleness else "too_recent")
                found = await work(self._of(moment))
        except NotOnStandby as reason:
            outcome = reason.detail
        except RequestRefused:
            outcome = "refused"
        except StorageError:
            outcome = "away"
        else:
            STANDBY_READS.labels("standby").inc()
            request.state.age = math.ceil(moment.age)
            return found
        STANDBY_READS.labels(outcome).inc()
        return await work(self._primary)

    def _of(self, moment: Moment) -> ReadStorage:
        database = moment.database
        search = self._primary.search.on(database)
        return ReadStorage(ChatReads(database), ChatUpdates(database), search, TurnReads(database), moment.time)


def accepted_staleness(request: Request) -> float:
    """The seconds by which the answer may be old: `max-stale` of `Cache-Control` (RFC 9111, 5.2.1.2), else 0."""
    directives: dict[str, str] = {}
    for line in request.headers.getlist("cache-control"):
        for directive in line.lower().split(","):
            name, _, value = directive.partition("=")
            directives[name.strip()] = value.strip(' "')
    seconds = directives.get("max-stale", "0")
    if not {"no-cache", "no-store"}.isdisjoint(directives):
        return 0
    return math.inf if not seconds else float(seconds) if seconds.isascii() and seconds.isdecimal() else 0

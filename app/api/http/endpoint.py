"""What is said of a call of the API: enough to route it, and enough to describe it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter. One with a `most` is a number from 1 to that."""

    name: str
    description: str
    default: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`call` is its method and path. `takes` and `gives` are the JSON bodies; a str is the media type of a body that is
    not JSON. `statuses` are the good answers, `problems` the refusals that are particular to the call. One that
    `streams` answers with the stream where the client asks for it, and `events` says which stream that is; one that is
    `open` asks nobody who they are.
    """

    call: str
    handler: Handler
    summary: str
    takes: type[BaseModel] | str | None = None
    gives: type[BaseModel] | str | None = None
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    queries: tuple[Query, ...] = ()
    headers: tuple[str, ...] = ()
    streams: bool = False
    events: Literal["Stream", "ChatStream", "Feed", "UiMessageStream"] = "Stream"
    open: bool = False

    @property
    def method(self) -> str:
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.call.partition(" ")[2]

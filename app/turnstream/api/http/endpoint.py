"""The description of an API call: enough to route it and to document it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from turnstream.domain.identity import Scope

# The limits of an owner's plan that a call uses (turnstream.domain.plans).
Limit = Literal["requests", "writes", "queued_turns", "streams", "uploads", "documents"]
# The member of a request's state with a function that is called once the request has been answered.
GIVE_BACK = "give_back"

Handler = Callable[[Request], Awaitable[Response]]


class HandlerApp:
    """A handler as an ASGI app. Starlette's own wrapper is not used: it handles exceptions a second time after the
    middleware, and keeps the request and four frames in memory until a stream ends.
    """

    __slots__ = ("_handler",)

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            response = await self._handler(Request(scope, receive, send))
            await response(scope, receive, send)
        finally:
            if give_back := scope.get("state", {}).pop(GIVE_BACK, None):
                give_back()


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter. With `most`, a number from 1 to `most`."""

    name: str
    description: str
    default: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`call` is method and path. Its credential needs one of `scopes`: unless they are given `read` for a GET, else
    `chat`. `reach` is the narrowest that the credential may be bound to: unless it is given `chat` for a path with one,
    else `owner`; if the handler decides, it calls `require_reach`. `takes` and `gives` are the JSON bodies; a str is
    the media type of a body that is not JSON. `statuses` are the statuses of success, `problems` the refusals of this
    call alone. `streams`: the response is a stream if the client accepts one; `events` names that stream. `open`: no
    owner is needed. `limits` are the owner's limits that the call uses: `writes` when the call is admitted, the others
    in the handler. A call that changes rows names its limits, or declares that it has none. A `lenient` call ignores
    unknown parameters of the query, like the original API of a dialect.
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
    events: str = "Stream"
    open: bool = False
    scopes: tuple[Scope, ...] = ()
    reach: Literal["owner", "chat", "turn", "handler"] = "owner"
    limits: tuple[Limit, ...] | None = None
    lenient: bool = False

    def __post_init__(self) -> None:
        if not self.open and not self.scopes:
            object.__setattr__(self, "scopes", ("read",) if self.method == "GET" else ("chat",))
        if self.reach == "owner" and "{chat}" in self.path:
            object.__setattr__(self, "reach", "chat")

    @property
    def method(self) -> str:
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.call.partition(" ")[2]

    @property
    def is_stream(self) -> bool:
        return self.gives == "text/event-stream"

    @property
    def checks_query(self) -> bool:
        """Whether parameters of the query that are not among `queries` are refused."""
        return not self.open and not self.lenient

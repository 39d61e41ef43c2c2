"""Describes an API call, so that it can be routed and documented."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from turnstream.domain.identity import Scope

# The limits of an owner's plan against which a call may count (turnstream.domain.plans).
Limit = Literal["requests", "writes", "queued_turns", "streams", "uploads", "documents"]
# The key, in a request's state, of the function that is called after the request has been answered.
GIVE_BACK = "give_back"

Handler = Callable[[Request], Awaitable[Response]]


class HandlerApp:
    """Runs a handler as an ASGI app. Starlette's own wrapper is not used, because it handles exceptions a second time
    after the middleware, and keeps the request and four stack frames in memory until a stream ends.
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
    """A query parameter. If `most` is set, its value is a number from 1 to `most`."""

    name: str
    description: str
    default: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`call` is the method and the path. The credential needs one of `scopes`; the default is `read` for a GET, else
    `chat`. `reach` is the narrowest binding that the credential may have; the default is `chat` for a path that
    contains a chat, else `owner`. With the reach `handler`, the handler calls `require_reach`. `takes` and `gives` are
    the models of the JSON bodies; a str is the media type of a body that is not JSON. `statuses` are the statuses of
    success, `problems` those of refusals that only this call has. With `streams`, the response is a stream if the
    client accepts a stream; `events` names that stream. An `open` call needs no owner. `limits` are the owner's limits
    against which the call counts: `writes` when the call is admitted, the others in the handler. A call that changes
    rows names its limits, or declares that it has none. A `lenient` call ignores unknown parameters of the query, as
    the original API of a dialect does.
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

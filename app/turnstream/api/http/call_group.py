"""A group of calls of the HTTP API, with its description in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnstream.api.http.endpoint import Endpoint

Answer = Callable[[Request, Endpoint], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class EventStream:
    """A stream of server-sent events. `events` maps names to data models; empty if another API defines the events."""

    about: str
    events: Mapping[str, type[BaseModel]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Foreign:
    """An API in a foreign form, whose owner describes its objects and events. `refusal` is the model of refusals."""

    name: str
    object: str
    events: str
    refusal: type[BaseModel]
    refusal_about: str


@dataclass(frozen=True, slots=True)
class CallGroup:
    """A group of calls. `tag` and `about` are its heading in the OpenAPI document; a group of the core has the modules
    of its handlers as tags. Without `about`, the calls belong to a tag of the core. `streams` are the event streams
    that `Endpoint.events` names. `answer` replaces `dispatch.answer`, so that refusals have the form of another API.
    `routes` are not in the document, and have no authentication, limits or spans. A group with a `header` gets only
    requests that have this header, and gets them before other groups, because two APIs may have calls with the same
    path. The `refused` routes of such a group come before the calls of other groups.
    """

    endpoints: tuple[Endpoint, ...]
    tag: str = ""
    about: str = ""
    streams: Mapping[str, EventStream] = field(default_factory=dict)
    answer: Answer | None = None
    routes: tuple[Route, ...] = ()
    refused: tuple[Route, ...] = ()
    foreign: Foreign | None = None
    header: str | None = None

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
    """A stream of server-sent events. `events` has the models of their data by name; empty if another API has these."""

    about: str
    events: Mapping[str, type[BaseModel]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Foreign:
    """The form of another API, whose owner describes its objects and events. Refusals are `refusal`."""

    name: str
    object: str
    events: str
    refusal: type[BaseModel]
    refusal_about: str


@dataclass(frozen=True, slots=True)
class CallGroup:
    """A group of calls. `tag` and `about` are its heading in the OpenAPI document; groups of the core have the modules
    of their handlers as tags. Without `about`, the calls belong to a tag of the core. `streams` are the event streams
    that `Endpoint.events` names. `answer` calls the handlers instead of `dispatch.answer`, to refuse in the form of
    another API. `routes` are not in the document, and have no authentication, limits or spans of endpoints. Two APIs
    may have calls of the same path: with a `header`, a group gets only requests with that header, before other groups.
    Its `refused` routes come before the calls of others.
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

"""The OpenAPI document, made from the table of endpoints and the models that the handlers use."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import metadata
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from app.api.events import CHAT_EVENTS, EVENTS, FEED_EVENTS
from app.api.http.endpoint import Endpoint
from app.api.http.errors import CELL_HEADER
from app.api.schemas.responses import Problem

Json = dict[str, Any]

JSON = "application/json"
PROBLEM = "application/problem+json"
STREAM = "text/event-stream"

_ABOUT = """\
Post a message with POST, follow the answer with GET …/stream, resume with the id of the last event you received.

Requests carry `Authorization: Bearer TOKEN`. While there is no token, a server on loopback answers
its own machine alone and needs none. Every refusal is a problem document (RFC 9457); `errors` names the fields that
are wrong."""

_REASONS = {
    200: "Done",
    201: "Created",
    202: "Accepted: the turn continues",
    204: "Nothing is left to send, now or ever",
    304: "The client's copy is still valid",
    400: "The request cannot be read",
    401: "No token, or one that is unknown, revoked or expired",
    403: "The token does not allow the call",
    404: "The owner has no such object",
    409: "The request does not fit the present state",
    413: "The body is too large",
    415: "The body has the wrong media type",
    421: "The owner is in another cell",
    422: "A field is not valid",
    429: "A limit of the owner is reached",
    500: "The server failed",
    503: "Try again: the server is not ready, or the database is away",
}
_HEADERS = {
    "Idempotency-Key": "Makes the request safe to repeat: the same key and body give the same answer. "
    "1 to 255 printable characters, of your making",
    "If-None-Match": "The ETag of the client's copy",
    "Last-Event-ID": "The id of the last event received. An EventSource sends it by itself; it wins over `cursor`",
}
_PROBLEM_HEADERS = {
    401: ("WWW-Authenticate", "Bearer"),
    403: ("WWW-Authenticate", "Bearer; where a scope is missing with `scope`: of these one is needed"),
    421: (CELL_HEADER, "the name of the owner's cell"),
    429: ("Retry-After", "seconds to wait before the next try"),
    503: ("Retry-After", "seconds to wait before the next try"),
}
_IDS = {"chat", "grant", "turn", "upload"}
_TEXTS = {
    "path": "the document's path, such as notes/today.md; its slashes need not be encoded",
    "tool_use_id": "the id of a call",
    "id": "the chat's own id, or any that the client made for it",
}
_ABOUT_EVENTS = "Server-sent events, each with JSON as its data and the cursor behind it as its id. "
_STREAMS = {
    "Stream": (f"{_ABOUT_EVENTS}The stream ends after the last event of the turn.", EVENTS),
    "ChatStream": (
        f"{_ABOUT_EVENTS}An event of a turn is that of the turn's own stream, with the turn's id besides.",
        CHAT_EVENTS,
    ),
    "Feed": (f"{_ABOUT_EVENTS}An event may come again after a reconnect; each is the whole state.", FEED_EVENTS),
    "UiMessageStream": ("Chunks of the AI SDK's UI message stream, protocol v1. They have neither names nor ids.", {}),
    "AgUiRun": ("Events of one run of AG-UI, protocol 1.0. They have neither names nor ids.", {}),
}


def openapi(endpoints: Sequence[Endpoint]) -> Json:
    """The document, as JSON values."""
    refs, schemas = _schemas(endpoints)
    paths: Json = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, refs)
        paths.setdefault(endpoint.path.replace(":path}", "}"), {})[endpoint.method.lower()] = operation
    about = metadata("turnstream")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "turnstream",
            "version": about["Version"],
            "summary": about["Summary"],
            "description": _ABOUT,
        },
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": _shared_answers(endpoints, refs),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


Refs = dict[type[BaseModel], Json]


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[Refs, Json]:
    events = [*EVENTS.values(), *CHAT_EVENTS.values(), *FEED_EVENTS.values()]
    modes: dict[type[BaseModel], JsonSchemaMode] = dict.fromkeys([Problem, *events], "validation")
    for endpoint in endpoints:
        if isinstance(endpoint.takes, type):
            modes[endpoint.takes] = "validation"
        if isinstance(endpoint.gives, type):
            modes[endpoint.gives] = "serialization"
    refs, schemas = models_json_schema(list(modes.items()), ref_template="#/components/schemas/{model}")
    return {cast("type[BaseModel]", model): ref for (model, _), ref in refs.items()}, schemas["$defs"]


def _operation(endpoint: Endpoint, refs: Refs) -> Json:
    operation: Json = {
        "operationId": endpoint.handler.__name__,
        "tags": [endpoint.handler.__module__.split(".")[2]],
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": {str(status): answer for status, answer in sorted(_answers(endpoint, refs))},
    }
    if endpoint.takes is not None:
        fields = endpoint.takes.model_fields.values() if isinstance(endpoint.takes, type) else ()
        required = any(field.is_required() for field in fields)
        operation["requestBody"] = {"required": required, "content": _content(endpoint.takes, refs)}
    if endpoint.open:
        operation["security"] = []
    return operation


def _parameters(endpoint: Endpoint) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)", endpoint.path):
        more = {"format": "uuid"} if name in _IDS else {"description": _TEXTS[name]}
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", **more}}
    for query in endpoint.queries:
        schema: Json = {"type": "string"}
        if query.most is not None:
            schema = {"type": "integer", "minimum": 1, "maximum": query.most, "default": query.default}
        yield {"name": query.name, "in": "query", "description": query.description, "schema": schema}
    for name in endpoint.headers:
        yield {"name": name, "in": "header", "description": _HEADERS[name], "schema": {"type": "string"}}


# --- answers ---------------------------------------------------------------------------------------------------------


def _answers(endpoint: Endpoint, refs: Refs) -> Iterator[tuple[int, Json]]:
    stream = {"$ref": f"#/components/responses/{endpoint.events}"}
    for status in endpoint.statuses:
        answer: Json = {"description": _REASONS[status]}
        if endpoint.gives == STREAM and status != 204:
            answer = stream
        elif status not in {204, 304}:
            answer["content"] = _content(endpoint.gives, refs)
        if status == 201 and endpoint.method == "POST":
            answer["headers"] = {"Location": _header("the path of the created object")}
        yield status, answer
    if endpoint.streams:
        yield 200, stream
    for status in problems(endpoint):
        yield status, {"$ref": f"#/components/responses/Problem{status}"}


def problems(endpoint: Endpoint) -> set[int]:
    """The refusals that a client must expect: the call's own, and those that every call of its kind has."""
    common = set() if endpoint.open else {401, 403, 421, 500, 503}
    if endpoint.takes is not None:
        common |= {413, 415}
    if isinstance(endpoint.takes, type):
        common |= {400, 422}
    if endpoint.streams or endpoint.gives == STREAM:
        common |= {429}
    return common | set(endpoint.problems)


def _content(body: type[BaseModel] | str | None, refs: Refs) -> Json:
    if isinstance(body, type):
        return {JSON: {"schema": refs[body]}}
    assert body is not None
    return {body: {"schema": {"type": "object" if body == JSON else "string"}}}


def _shared_answers(endpoints: Sequence[Endpoint], refs: Refs) -> Json:
    shared = {name: _stream(about, events, refs) for name, (about, events) in _STREAMS.items()}
    for status in sorted({status for endpoint in endpoints for status in problems(endpoint)}):
        answer: Json = {"description": _REASONS[status], "content": {PROBLEM: {"schema": refs[Problem]}}}
        if status in _PROBLEM_HEADERS:
            name, description = _PROBLEM_HEADERS[status]
            answer["headers"] = {name: _header(description)}
        shared[f"Problem{status}"] = answer
    return shared


def _stream(about: str, models: Mapping[str, type[BaseModel]], refs: Refs) -> Json:
    """OpenAPI 3.1 cannot describe the items of a stream: the description is for people, `x-events` for programs."""
    events = "\n".join(f"- `{name}`: {' '.join((model.__doc__ or '').split())}" for name, model in models.items())
    return {
        "description": f"{about} Events, with their data in `x-events`:\n\n{events}" if models else about,
        "headers": {
            "Cache-Control": _header("no-store, no-transform"),
            "X-Accel-Buffering": _header("no"),
            "Turnstream-Heartbeat": _header("seconds between two comments of a stream without events"),
        },
        "content": {
            STREAM: {"schema": {"type": "string"}, "x-events": {name: refs[model] for name, model in models.items()}}
        },
    }


def _header(description: str) -> Json:
    return {"description": description, "required": True, "schema": {"type": "string"}}

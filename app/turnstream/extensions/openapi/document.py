"""Generates the OpenAPI document from the table of endpoints and the handlers' models."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from importlib.metadata import metadata
from operator import or_
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from turnstream.api.codec import to_json
from turnstream.api.http.call_group import CallGroup, EventStream, Foreign
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.errors import CELL_HEADER
from turnstream.api.schemas.fields import Absent, without_defaults
from turnstream.extensions.openapi.schemas import Problem

Json = dict[str, Any]
# Version 3.1 has no keyword for the items of a stream. Some client generators do not support 3.2.
Version = Literal["3.1", "3.2"]

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"
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
    "Cache-Control": "`max-stale=N`: the answer may be N seconds old, and come from a standby; its header `Age` tells. "
    "Send at most the seconds since the answer to your last change, and you find that change",
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
_IDS = {
    *("chat", "credential", "entry", "grant", "job", "membership", "replica", "schedule", "share", "trigger", "turn"),
    "upload",
}
_TEXTS = {
    "path": "the document's path, such as notes/today.md; its slashes need not be encoded",
    "tool_use_id": "the id of a call",
    "id": "the chat's own id, or any that the client made for it",
    "conversation": "the id of a conversation: `conv_` and the chat's id",
    "item": "the id of an item",
    "member": "the name of the member; its slashes need not be encoded",
    "model": "the name of a model; its slashes need not be encoded",
    "response": "the id of a response",
    "secret": "the secret of a link, which is the last part of its path",
    "server": "the name of an MCP server",
}
# Tags by the module of the handler.
_TAGS = {
    "chats": ("Chats", "Conversations: their titles, system prompts and settings"),
    "turns": ("Turns", "Messages and answers: to post, read, cancel, generate again, copy and delete them"),
    "streams": ("Streams", "Server-sent events of a turn, of a chat, and of all chats of an owner"),
    "actions": ("Actions", "Calls of tools: decisions about those that wait, permissions, whole results"),
    "tokens": ("Tokens", "What a credential allows; short-lived tokens for browsers"),
    "health": ("Health", "What supervisors and monitoring ask"),
}


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)

    id: Annotated[str | Absent, Field(description="the cursor behind the event; notices have none")] = None


def _event_schema(stream: str, events: Mapping[str, type[BaseModel]]) -> type[BaseModel]:
    """Returns the schema that every event of the stream meets, after the client has parsed the data."""
    frames = []
    for name, model in events.items():
        fields: dict[str, Any] = {"event": (Literal[name], ...), "data": (model, ...)}
        frames.append(create_model(f"{model.__name__}Frame", __base__=_Frame, **fields))
    root: Any = (reduce(or_, frames), Field(discriminator="event"))
    return create_model(f"{stream}Event", __base__=RootModel, __doc__=f"An event of the stream `{stream}`.", root=root)


Refs = Mapping[type[BaseModel], Json]


class OpenApi:
    """The document of the calls in `parts`. `params` returns the JSON Schemas of model parameters by name."""

    def __init__(self, parts: Sequence[CallGroup], params: Callable[[], Json]) -> None:
        self._parts = parts
        self._params = params
        self._texts: dict[tuple[str, Version], bytes] = {}

    def text(self, server: str, version: Version) -> bytes:
        """Returns the document as JSON text. The addresses of the calls are relative to `server`."""
        if (server, version) not in self._texts:
            self._texts.clear()  # drops the text for another prefix; most servers have a single prefix
            self._texts[server, version] = to_json({**self.document(version), "servers": [{"url": server}]})
        return self._texts[server, version]

    def document(self, version: Version = "3.1") -> Json:
        """Returns the document as JSON values."""
        streams = {name: stream for part in self._parts for name, stream in part.streams.items()}
        frames = {name: _event_schema(name, stream.events) for name, stream in streams.items() if stream.events}
        refs, schemas = self._schemas(streams, frames)
        paths: Json = {}
        for part in sorted(self._parts, key=lambda part: part.header is not None):
            for endpoint in part.endpoints:  # a path can have one operation per method
                operations = paths.setdefault(endpoint.path.replace(":path}", "}"), {})
                operations.setdefault(endpoint.method.lower(), _operation(endpoint, part, refs, version))
        about = metadata("turnstream")
        tags = dict([*_TAGS.values(), *((part.tag, part.about) for part in self._parts if part.about)])
        return {
            "openapi": f"{version}.0",
            "info": {
                "title": "turnstream",
                "version": about["Version"],
                "summary": about["Summary"],
                "description": _ABOUT,
            },
            "security": [{"bearer": []}, {}],
            "tags": [{"name": name, "description": description} for name, description in tags.items()],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "responses": {
                    **{
                        name: _stream(stream, refs, None if name not in frames else refs[frames[name]], version)
                        for name, stream in streams.items()
                    },
                    **self._problems(refs),
                },
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
        }

    def _schemas(self, streams: Mapping[str, EventStream], frames: Mapping[str, type[BaseModel]]) -> tuple[Refs, Json]:
        refusals = [part.foreign.refusal for part in self._parts if part.foreign]
        events = [event for stream in streams.values() for event in stream.events.values()]
        modes: dict[type[BaseModel], JsonSchemaMode] = dict.fromkeys(
            [Problem, *refusals, *events, *frames.values()], "validation"
        )
        for endpoint in (each for part in self._parts for each in part.endpoints):
            if isinstance(endpoint.takes, type):
                modes[endpoint.takes] = "validation"
            if isinstance(endpoint.gives, type):
                modes[endpoint.gives] = "serialization"
        refs, schemas = models_json_schema(list(modes.items()), ref_template="#/components/schemas/{model}")
        if "Params" in schemas["$defs"]:
            values = {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in self._params().items()}
            schemas["$defs"]["Params"]["properties"] = values
        _open_choices(schemas["$defs"])
        for model in schemas["$defs"].values():
            _state_defaults(model.get("properties", {}).values())
        return {cast("type[BaseModel]", model): ref for (model, _), ref in refs.items()}, schemas["$defs"]

    def _problems(self, refs: Refs) -> Json:
        own = [endpoint for part in self._parts if not part.foreign for endpoint in part.endpoints]
        shared = {}
        for status in sorted({status for each in own for status in problems(each)}):
            answer: Json = {"description": _REASONS[status], "content": {PROBLEM: {"schema": refs[Problem]}}}
            if status in _PROBLEM_HEADERS:
                name, description = _PROBLEM_HEADERS[status]
                answer["headers"] = {name: _header(description)}
            shared[f"Problem{status}"] = answer
        return shared


def _open_choices(schema: Any) -> None:
    """Replaces `oneOf` by `anyOf` in each choice without a tag, because several options of such a choice may match."""
    if isinstance(schema, dict):
        if "oneOf" in schema and "discriminator" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
        for value in schema.values():
            _open_choices(value)
    elif isinstance(schema, list):
        for value in schema:
            _open_choices(value)


def _state_defaults(members: Iterable[Any]) -> None:
    """Moves defaults into the descriptions of members. Some client generators, which use one model for requests and
    responses, would make members with defaults required.
    """
    for member in members:
        default = member.pop("default", None)
        if isinstance(default, str | int | float) and default != "":
            stated = f"`{default if isinstance(default, str) else json.dumps(default)}` if it is left out"
            member["description"] = "; ".join(filter(None, [member.get("description"), stated]))


def _operation(endpoint: Endpoint, part: CallGroup, refs: Refs, version: Version) -> Json:
    name = endpoint.handler.__name__
    operation: Json = {
        "operationId": f"{part.foreign.name}_{name}" if part.foreign else name,
        "tags": [part.tag or _TAGS[endpoint.handler.__module__.split(".")[2]][0]],
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": {str(status): answer for status, answer in sorted(_answers(endpoint, refs))}
        if part.foreign is None
        else _foreign_answers(endpoint, part.foreign, refs),
    }
    if endpoint.streams and part.foreign is None and version == "3.1":
        # Generated clients would regard the stream as the answer to any request.
        operation["x-stream"] = operation["responses"].pop("200")
    if endpoint.takes is not None:
        fields = endpoint.takes.model_fields.values() if isinstance(endpoint.takes, type) else ()
        required = any(field.is_required() for field in fields)
        content = _content(endpoint.takes, refs)
        if isinstance(endpoint.takes, str) and part.foreign is None:
            content |= _content(BYTES, refs)  # the server checks the bytes, not their declared type
        operation["requestBody"] = {"required": required, "content": content}
    if endpoint.open and 401 not in endpoint.problems:
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
        if "Cache-Control" in endpoint.headers and endpoint.gives != STREAM:
            answer["headers"] = {"Age": _header("seconds, of an answer that may be old", required=False)}
        yield status, answer
    if endpoint.streams:
        yield 200, stream
    for status in problems(endpoint):
        yield status, {"$ref": f"#/components/responses/Problem{status}"}


def _foreign_answers(endpoint: Endpoint, foreign: Foreign, refs: Refs) -> Json:
    content: Json = {JSON: {"schema": {"type": "object", "description": foreign.object, "additionalProperties": True}}}
    if endpoint.gives is not None:
        content = _content(endpoint.gives, refs)
    if endpoint.streams:
        content[STREAM] = {"schema": {"type": "string", "description": foreign.events}}
    refusal = {"description": foreign.refusal_about, "content": {JSON: {"schema": refs[foreign.refusal]}}}
    return {"200": {"description": _REASONS[200], "content": content}, "default": refusal}


def problems(endpoint: Endpoint) -> set[int]:
    """Returns the statuses of the expected refusals: refusals of this call, and refusals that all such calls have."""
    common = set() if endpoint.open else {401, 403, 421, 500, 503}
    if endpoint.takes is not None:
        common |= {413, 415}
    if isinstance(endpoint.takes, type):
        common |= {400, 422}
    if endpoint.checks_query:
        common |= {422}
    if endpoint.limits or endpoint.streams or endpoint.gives == STREAM:
        common |= {429}
    return common | set(endpoint.problems)


def _content(body: type[BaseModel] | str | None, refs: Refs) -> Json:
    if isinstance(body, type):
        return {JSON: {"schema": refs[body]}}
    assert body is not None
    schema: Json = {"type": "string"}
    if body == JSON:
        schema = {"type": "object"}
    elif body != TEXT:
        schema |= {"format": "binary", "contentMediaType": body}
    return {body: {"schema": schema}}


def _stream(stream: EventStream, refs: Refs, frame: Json | None, version: Version) -> Json:
    models = stream.events
    events = "\n".join(f"- `{event}`: {' '.join((model.__doc__ or '').split())}" for event, model in models.items())
    content: Json = {"schema": {"type": "string"}}
    if models and version == "3.1":
        content["x-itemSchema"] = frame
    elif models:
        content = {"itemSchema": {"oneOf": [_sent(event, refs[model]) for event, model in models.items()]}}
    return {
        "description": f"{stream.about} Events:\n\n{events}" if models else stream.about,
        "headers": {
            "Cache-Control": _header("no-store, no-transform"),
            "X-Accel-Buffering": _header("no"),
            "Turnstream-Heartbeat": _header("seconds between two comments of a stream without events"),
        },
        "content": {STREAM: content},
    }


def _sent(event: str, data: Json) -> Json:
    """Returns the schema of a server-sent event. All its fields are texts, and the data field contains JSON."""
    fields = {
        "id": {"type": "string"},
        "event": {"const": event},
        "data": {"type": "string", "contentMediaType": JSON, "contentSchema": data},
    }
    return {"type": "object", "required": ["event", "data"], "properties": fields}


def _header(description: str, *, required: bool = True) -> Json:
    return {"description": description, "required": required, "schema": {"type": "string"}}

"""The calls of the API for MCP Apps: they return the page of an app and the frame for it, and run the tool calls of
apps.
"""

from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.http.reading import idempotency_key_of, read_body
from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.services import as_id, identity_of, path_for, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, NotFound, RequestRefused
from turnstream.domain.turns import Status
from turnstream.extensions.mcp.failures import failures_as
from turnstream.extensions.mcp.offer_calls import offers_of
from turnstream.libraries.dialects.apps import WantedCall

# The page around the frame sends the HTML once. When the HTML replaces this document, its listeners are removed.
_FRAME: Final = """<!doctype html><meta charset="utf-8"><title>App</title><script>
addEventListener('message', ({ source, data }) => {
  if (source !== parent || data?.method !== 'ui/notifications/sandbox-resource-ready') return
  document.open()
  document.write(data.params.html)
  document.close()
})
parent.postMessage({ jsonrpc: '2.0', method: 'ui/notifications/sandbox-proxy-ready', params: {} }, '*')
</script>
"""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), display-capture=(), clipboard-read=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}


class McpAppIn(Body):
    """The `ui` member of a tool's result."""

    server: Storable
    uri: Annotated[Storable, Field(min_length=1, max_length=2000, pattern="^ui://")]


class McpAppOut(BaseModel):
    """An app of an MCP server."""

    html: Annotated[str, Field(description="untrusted: show it in a frame of another origin only")]
    connect: Annotated[list[str], Field(description="origins that it may send requests to")]
    load: Annotated[list[str], Field(description="origins of its scripts, styles, fonts and media")]
    frame: Annotated[str, Field(description="the frame of this server, which takes the HTML by `postMessage`")]


class AppCallIn(Body):
    """A tool call that an app makes. `chat`, `turn` and `app` identify the result that has the app; `app` is the id of
    the call with that result.
    """

    chat: UUID
    turn: UUID
    app: Annotated[Storable, Field(min_length=1, max_length=1000)]
    name: Annotated[Storable, Field(min_length=1, max_length=2000, description="the server's own name for the tool")]
    arguments: dict[str, Any] = Field(default_factory=dict)


class AppTurnOut(BaseModel):
    """The turn that runs the call of an app. The stream of the turn shows the call, whether it waits for a person, and
    its result.
    """

    chat: UUID
    turn: UUID
    app: str


class AppCallOut(AppTurnOut):
    """A tool call that an app has made."""

    name: Annotated[str, Field(description="the tool")]
    status: Status


class AppCallList(BaseModel):
    calls: list[AppCallOut]


async def read_mcp_app(request: Request) -> Response:
    sent, _ = await read_body(request, McpAppIn)
    identity, offers = identity_of(request), offers_of(request)
    if identity.is_bound:
        raise Forbidden("A token for a single chat or turn reaches no MCP server.")
    if offers is None:
        raise NotFound(f"There is no MCP server {sent.server!r} for the caller.")
    with failures_as("uri"):
        app = await offers.app(identity.owner, sent.server, sent.uri)
    return json_response(McpAppOut(html=app.html, connect=list(app.connect), load=list(app.load), frame=app.frame))


async def post_app_call(request: Request) -> Response:
    sent, body = await read_body(request, AppCallIn)
    identity, offers = identity_of(request), offers_of(request)
    if identity.is_bound:
        raise Forbidden("A token for a single chat or turn reaches no MCP server.")
    if offers is None:
        raise NotFound("There is no MCP server for the caller.")
    wanted = WantedCall(sent.chat, sent.turn, sent.app, sent.name, sent.arguments)
    key = idempotency_key_of(request, body)
    exchange = await offers.call_from_app(services_of(request), identity.owner, wanted, key)
    turn = exchange.assistant_turn
    url = path_for(request, f"/api/chats/{turn.chat_id}/turns/{turn.id}")
    return json_response(AppTurnOut(chat=turn.chat_id, turn=turn.id, app=sent.app), 201, {"Location": url})


async def list_app_calls(request: Request) -> Response:
    from turnstream.extensions.mcp.app_turns import app_calls

    turn = as_id(request.query_params.get("turn"))
    if turn is None:
        raise RequestRefused("`turn` must be the id of a turn.", field="turn")
    found = await app_calls(services_of(request), identity_of(request).owner, turn)
    calls = [
        AppCallOut(chat=each.chat, turn=each.turn, app=each.app, name=each.name, status=each.status) for each in found
    ]
    return json_response(AppCallList(calls=calls))


async def app_frame(request: Request) -> Response:
    """Returns an empty page without a secret. The query contains the origins that the page's policy allows."""
    from turnstream.extensions.mcp.apps import origins_of, policy_of

    query = request.query_params
    connect, load = (origins_of(query.getlist(name)) for name in ("connect", "load"))
    return HTMLResponse(_FRAME, headers={**_HEADERS, "Content-Security-Policy": policy_of(connect, load)})


ENDPOINTS = (
    Endpoint(
        "POST /api/mcp/apps",
        read_mcp_app,
        "Read the app of a tool's result, to be shown in a sandboxed frame",
        McpAppIn,
        McpAppOut,
        problems=(404,),
        limits=("writes",),
        reach="handler",
        scopes=("chat", "send"),
    ),
    Endpoint(
        "POST /api/mcp/apps/calls",
        post_app_call,
        "Call a tool for an app of its server, in a turn of its own",
        AppCallIn,
        AppTurnOut,
        (201,),
        (404, 409, 422),
        headers=("Idempotency-Key",),
        limits=("writes", "queued_turns"),
        reach="handler",
        scopes=("chat", "send"),
    ),
    Endpoint(
        "GET /api/mcp/apps/calls",
        list_app_calls,
        "The calls that the apps of a turn have made, oldest first",
        gives=AppCallList,
        queries=(Query("turn", "the id of the turn whose results have the apps"),),
    ),
)

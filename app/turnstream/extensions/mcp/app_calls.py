"""The calls of MCP Apps: the page of an app for its owner, and the empty frame in which clients show it."""

from typing import Annotated, Final

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.services import identity_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, NotFound
from turnstream.extensions.mcp.offer_calls import failures_as, offers_of

# The page hands the HTML over once. Its own listeners end with the document that it replaces.
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


async def read_mcp_app(request: Request) -> Response:
    from turnstream.extensions.mcp.apps import read_app

    sent, _ = await read_body(request, McpAppIn)
    identity, offers = identity_of(request), offers_of(request)
    if identity.is_bound:
        raise Forbidden("A token for one chat or turn reaches no MCP server.")
    connection = await offers.connection(identity.owner, sent.server) if offers is not None else None
    if connection is None:
        raise NotFound(f"There is no MCP server {sent.server!r} for the caller.")
    with failures_as("uri"):
        app = await read_app(identity.owner, connection, sent.uri)
    return json_response(McpAppOut(html=app.html, connect=list(app.connect), load=list(app.load), frame=app.frame))


async def app_frame(request: Request) -> Response:
    """An empty page without a secret. The query gives the origins of its policy."""
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
)

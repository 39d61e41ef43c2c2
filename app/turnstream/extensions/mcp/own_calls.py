"""The calls of the API with which an owner lists, adds and removes the owner's MCP servers."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, cast

from pydantic import AfterValidator, BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.services import identity_of, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import CannotOpen, Conflict, Forbidden, NotFound, RequestRefused
from turnstream.extensions.mcp.declared import MOST_OWN_SERVERS
from turnstream.tools.tool import ToolUnavailable

if TYPE_CHECKING:
    from turnstream.extensions.mcp.offers import Offers
    from turnstream.extensions.mcp.own_servers import OwnServers

_MOST_HEADERS: Final = 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
# Headers that the connection sets, so owners may not set them.
_REFUSED: Final = frozenset({"host", "content-length", "content-type", "accept", "connection", "transfer-encoding"})


def _printable(value: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]{1,4000}", value):
        raise ValueError("the value of a header must have 1 to 4,000 printable characters")
    return value


class OwnServerIn(Body):
    url: Annotated[Storable, Field(min_length=1, max_length=2000, description="begins with https://")]
    headers: Annotated[dict[str, Annotated[str, AfterValidator(_printable)]], Field(max_length=_MOST_HEADERS)] = Field(
        default_factory=dict, description="sent with each request, such as `Authorization`; stored encrypted"
    )


class OwnServerOut(BaseModel):
    """An MCP server of the owner. Values of headers are never shown."""

    name: str
    url: str
    headers: Annotated[list[str], Field(description="their names")]
    added_at: datetime | None


class OwnServerList(BaseModel):
    allowed: Annotated[bool, Field(description="whether owners may add servers here")]
    servers: list[OwnServerOut]


class OwnToolOut(BaseModel):
    name: str
    description: str


class OwnServerAdded(BaseModel):
    """A server that was added, with its tools, which the owner accepts by adding the server."""

    name: str
    tools: list[OwnToolOut]


class OwnServerRemoved(BaseModel):
    removed: str


async def list_own_servers(request: Request) -> Response:
    own = _own(request)
    servers = [] if own is None else await own.list(identity_of(request).owner)
    shown = [
        OwnServerOut(name=each.name, url=each.url, headers=list(each.headers), added_at=each.added_at)
        for each in servers
    ]
    return json_response(OwnServerList(allowed=own is not None, servers=shown))


async def put_own_server(request: Request) -> Response:
    own, identity = _own(request), identity_of(request)
    sent, _ = await read_body(request, OwnServerIn)
    if own is None:
        raise Forbidden("Servers of owners are off; the operator turns them on with TURNSTREAM_OWNER_SERVERS.")
    name = request.path_params["server"]
    if not _NAME.fullmatch(name):
        raise RequestRefused("`server` must have 1 to 32 small letters, digits and hyphens.", field="server")
    for header in sent.headers:
        if not _HEADER.fullmatch(header) or header.lower() in _REFUSED:
            raise RequestRefused("`headers` must have names that a server may get from an owner.", field="headers")
    try:
        tools = await own.put(identity.owner, name, sent.url, sent.headers, identity.actor)
    except ValueError as error:
        raise RequestRefused(f"`url` is refused: {error}.", field="url") from None
    except CannotOpen:
        raise Conflict("The key of the owner cannot be decrypted by this server: it lacks a master key.") from None
    except ToolUnavailable as error:
        raise RequestRefused(f"`url` leads to no MCP server that answers: {error}", field="url") from None
    if tools is None:
        raise Conflict(f"An owner has at most {MOST_OWN_SERVERS} servers: remove one first.")
    found = [OwnToolOut(name=each.name, description=each.spec.description) for each in tools]
    return json_response(OwnServerAdded(name=name, tools=found))


async def delete_own_server(request: Request) -> Response:
    own, identity, name = _own(request), identity_of(request), request.path_params["server"]
    if own is None or not _NAME.fullmatch(name) or not await own.delete(identity.owner, name, identity.actor):
        raise NotFound(f"The owner has no server {name[:100]!r}.")
    return json_response(OwnServerRemoved(removed=name))


def _own(request: Request) -> "OwnServers | None":
    offers = cast("Offers | None", services_of(request).states.get("mcp"))
    return None if offers is None else offers.own


ENDPOINTS = (
    Endpoint("GET /api/mcp/servers", list_own_servers, "The MCP servers that the owner has added", gives=OwnServerList),
    Endpoint(
        "PUT /api/mcp/servers/{server}",
        put_own_server,
        "Add an MCP server for the owner, or change it; its present tools are accepted",
        OwnServerIn,
        OwnServerAdded,
        problems=(409,),
        limits=("writes",),
        scopes=("approve",),
    ),
    Endpoint(
        "DELETE /api/mcp/servers/{server}",
        delete_own_server,
        "Remove an MCP server of the owner",
        gives=OwnServerRemoved,
        problems=(404,),
        limits=(),
        scopes=("approve",),
    ),
)

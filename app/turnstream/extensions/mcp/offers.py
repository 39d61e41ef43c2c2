"""Prompts and resources of MCP servers. People choose from their lists; no model reads the lists."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import structlog
from mcp import MCPError, types

from turnstream.api.services import Services
from turnstream.domain.errors import NotFound
from turnstream.extensions.mcp.app_turns import call_from_app
from turnstream.extensions.mcp.apps import AppPage, read_app
from turnstream.extensions.mcp.connection import McpConnection
from turnstream.extensions.mcp.failures import failures_as
from turnstream.extensions.mcp.own_servers import OwnServers
from turnstream.extensions.mcp.owner_calls import SignInNeeded
from turnstream.extensions.mcp.session import OfferItem, OfferKind, OfferList
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.extensions.mcp.tool import parts_of
from turnstream.kit.text import storable
from turnstream.libraries.dialects.apps import MEDIA_TYPE, WantedCall
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey
from turnstream.tools.tool import File, OutcomePart, ToolError, ToolUnavailable, join_texts

log = structlog.get_logger(__name__)

MAX_OFFERS: Final = 500  # maximum number of offers of one kind from one server
_LONGEST_ID: Final = 2_000  # maximum characters of a name or an address
_LONGEST_TEXT: Final = 1_000  # maximum characters of an error
_MOST_ARGUMENTS: Final = 50
_MOST_VALUES: Final = 100  # values that complete an argument
_MOST_CONTENTS: Final = 20  # maximum number of contents of one resource
_OWNER_TTL: Final = 300.0  # the longest life of an owner's list in memory, in seconds
_MOST_LISTS: Final = 1000  # maximum number of lists of owners in memory


@dataclass(frozen=True, slots=True)
class ServerOffers:
    """The offers of one server to an owner. If the server did not answer, `failure` is a sentence with the reason."""

    server: str
    items: Sequence[OfferItem] = ()
    failure: str = ""
    wants_sign_in: bool = False

    @property
    def prompts(self) -> list[types.Prompt]:
        return [each for each in self.items if isinstance(each, types.Prompt)]

    @property
    def resources(self) -> list[types.Resource]:
        return [each for each in self.items if isinstance(each, types.Resource)]

    @property
    def templates(self) -> list[types.ResourceTemplate]:
        return [each for each in self.items if isinstance(each, types.ResourceTemplate)]


@dataclass(slots=True)
class Offers:
    """The state of the extension: the connections to the operator's servers, the sign-ins of owners, and the servers of
    owners.
    """

    connections: Mapping[str, McpConnection]
    sign_ins: SignIns | None = None
    own: OwnServers | None = None
    _kept: OrderedDict[tuple[str, str, OfferKind], OfferList] = field(default_factory=OrderedDict)

    # --- lists -------------------------------------------------------------------------------------------------------

    async def of_kind(self, owner: str, kind: OfferKind) -> Sequence[ServerOffers]:
        """Returns the servers with their offers to the owner. A failure of one server does not affect the others."""
        asked = [each for each in self.connections.values() if _allows(each, kind)]
        asked += await self.own.connections(owner) if self.own is not None else ()
        return await asyncio.gather(*(self._of_server(owner, kind, each) for each in asked))

    async def _of_server(self, owner: str, kind: OfferKind, connection: McpConnection) -> ServerOffers:
        name = connection.server.name
        try:
            found = await self._list(owner, kind, connection)
        except SignInNeeded:
            return ServerOffers(name, failure=_sign_in_first(name), wants_sign_in=True)
        except ToolUnavailable as error:
            return ServerOffers(name, failure=str(error))
        except MCPError as error:
            return ServerOffers(name, failure=_words(name, error))
        items = [each for each in found.items[:MAX_OFFERS] if _is_short(each)]
        if left_out := len(found.items) - len(items):
            log.warning("mcp.offers_left_out", server=name, kind=kind, number=left_out)
        return ServerOffers(name, items)

    async def _list(self, owner: str, kind: OfferKind, connection: McpConnection) -> OfferList:
        server = connection.server
        if not server.per_owner:
            return await connection.offers(owner, kind)  # the session of the connection caches the list
        if server.oauth and await connection.owner_calls().sign_ins.token(owner, server) is None:
            raise SignInNeeded
        key, now = (owner, server.name, kind), monotonic()
        kept = self._kept.get(key)
        if kept is None or kept.until <= now:
            read = await connection.offers(owner, kind)
            kept = self._kept[key] = OfferList(read.items, min(read.until, now + _OWNER_TTL))
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_LISTS:
                self._kept.popitem(last=False)
        return kept

    # --- apps --------------------------------------------------------------------------------------------------------

    async def app(self, owner: str, server: str, uri: str) -> AppPage:
        """Returns the page of an app. Raises NotFound, ToolError and ToolUnavailable."""
        connection = await self.connection(owner, server)
        if connection is None:
            raise NotFound(f"There is no MCP server {server[:100]!r} for the caller.")
        return await read_app(owner, connection, uri)

    async def app_page(self, owner: str, server: str, uri: str) -> Mapping[str, Any]:
        """Returns the page of an app as a resource, in the form that MCP defines. Raises NotFound, RequestRefused and
        Unavailable.
        """
        with failures_as("uri"):
            app = await self.app(owner, server, uri)
        csp = {"connectDomains": list(app.connect), "resourceDomains": list(app.load)}
        content = {"uri": uri, "mimeType": MEDIA_TYPE, "text": app.html, "_meta": {"ui": {"csp": csp}}}
        return {"contents": [content]}

    async def call_from_app(
        self, services: Services, owner: str, wanted: WantedCall, key: IdempotencyKey | None
    ) -> Exchange:
        """Posts the turn that runs the call `wanted`. Raises NotFound, RequestRefused, Conflict after too many calls,
        and TooMany.
        """
        return await call_from_app(services, self.connection, owner, wanted, key)

    # --- use ---------------------------------------------------------------------------------------------------------

    async def find(self, owner: str, server: str, kind: OfferKind) -> McpConnection | None:
        found = await self.connection(owner, server)
        return found if found is not None and (server not in self.connections or _allows(found, kind)) else None

    async def connection(self, owner: str, server: str) -> McpConnection | None:
        found = self.connections.get(server)
        if found is None and self.own is not None:
            own = await self.own.connections(owner)
            return next((each for each in own if each.server.name == server), None)
        return found

    async def prompt(
        self, owner: str, connection: McpConnection, name: str, arguments: Mapping[str, str]
    ) -> Sequence[OutcomePart]:
        """Returns the messages of a prompt as the parts of one message. If the prompt has messages of both roles, each
        text begins with its role. Raises ToolError and ToolUnavailable.
        """
        try:
            result = await connection.use_as(owner, lambda session: session.prompt(name, arguments))
        except (SignInNeeded, MCPError) as error:
            raise _refusal(connection, error) from error
        is_dialogue = any(message.role != "user" for message in result.messages)
        parts: list[OutcomePart] = []
        for message in result.messages:
            for part in parts_of(message.content):
                is_first_text = is_dialogue and isinstance(part, str)
                parts.append(f"{message.role.capitalize()}: {part}" if is_first_text else part)
        joined = [storable(part) if isinstance(part, str) else part for part in join_texts(parts, "\n\n")]
        if not (found := [part for part in joined if isinstance(part, File) or part.strip()]):
            raise ToolError(f"The prompt {name} of {connection.server.name} is empty.")
        return found

    async def completions(
        self, owner: str, connection: McpConnection, name: str, argument: str, value: str, given: Mapping[str, str]
    ) -> Sequence[str]:
        """Returns the values that a server proposes for a prompt's argument. Raises ToolError and ToolUnavailable."""
        try:
            found = await connection.use_as(owner, lambda session: session.completion(name, argument, value, given))
        except (SignInNeeded, MCPError) as error:
            raise _refusal(connection, error) from error
        return [storable(each) for each in found.values[:_MOST_VALUES] if len(each) <= _LONGEST_TEXT]

    async def resource(self, owner: str, connection: McpConnection, uri: str) -> Sequence[File]:
        """Reads a resource, and returns its contents as files. Raises ToolError and ToolUnavailable."""
        try:
            result = await connection.use_as(owner, lambda session: session.resource(uri))
        except (SignInNeeded, MCPError) as error:
            raise _refusal(connection, error) from error
        if not 0 < len(result.contents) <= _MOST_CONTENTS:
            count = len(result.contents)
            raise ToolError(f"The resource has {count:,} parts; from 1 to {_MOST_CONTENTS} can be attached at once.")
        return [_file_of(content) for content in result.contents]


def _file_of(content: types.TextResourceContents | types.BlobResourceContents) -> File:
    """Returns one content of a resource as a file, whose name is the end of the content's address."""
    path = urlsplit(content.uri).path.rstrip("/") or content.uri
    name = storable(unquote(path.rpartition("/")[2]))[:300].strip() or "resource"
    if isinstance(content, types.TextResourceContents):
        return File(content.text.encode(errors="replace"), name)
    (part,) = parts_of(types.EmbeddedResource(resource=content))
    if not isinstance(part, File):
        raise ToolError(f"The resource {name} cannot be read: its content is not base64.")
    return File(part.content, name)


def _allows(connection: McpConnection, kind: OfferKind) -> bool:
    server = connection.server
    return server.prompts if kind == "prompts" else server.resources


def _is_short(item: OfferItem) -> bool:
    id = item.uri if isinstance(item, types.Resource) else getattr(item, "uri_template", "")
    arguments = (item.arguments or []) if isinstance(item, types.Prompt) else []
    names = [item.name, id, *(each.name for each in arguments)]
    return max(map(len, names)) <= _LONGEST_ID and len(arguments) <= _MOST_ARGUMENTS


def _sign_in_first(server: str) -> str:
    return f"{server} needs a sign-in first: it is offered when a tool of this server is called."


def _words(server: str, error: MCPError) -> str:
    return f"{server} has refused this: {storable(error.message[:_LONGEST_TEXT]).strip() or 'it gives no reason'}"


def _refusal(connection: McpConnection, error: Exception) -> ToolError:
    name = connection.server.name
    return ToolError(_words(name, error) if isinstance(error, MCPError) else _sign_in_first(name))

"""Tools of MCP servers that the tools file declares or owners add. Owners sign in if a server requires it."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import Field, HttpUrl

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Context, Extension, Work
from turnstream.libraries.extras import need

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.extensions.mcp.declared import McpServer
    from turnstream.extensions.mcp.own_servers import OwnServers
    from turnstream.extensions.mcp.sign_ins import SignIns
    from turnstream.libraries.outgoing.addresses import Allowed
    from turnstream.libraries.outgoing.owner_tokens import OAuthResource, ServiceAccess
    from turnstream.libraries.tool_sources.declarations import Declarations
    from turnstream.libraries.tool_sources.kinds import SourceKind
    from turnstream.storage.database import Database
    from turnstream.tools.sources import LoadedTools


class McpSettings(Section):
    sign_in_url: HttpUrl | None = Field(
        None, description="public address of this server, for links to sign in to MCP servers"
    )
    owner_servers: bool = Field(False, description="whether owners may add MCP servers over HTTP")
    owner_servers_allow: str | None = Field(
        None,
        description="internal hosts and networks for MCP servers of owners, also without TLS, separated by commas",
    )


def _make(settings: Settings, declarations: "Declarations") -> "LoadedTools":
    from turnstream.domain.errors import errors_named
    from turnstream.extensions.mcp.declared import servers_of
    from turnstream.tools.sources import LoadedTools

    servers, given = servers_of(declarations), settings.section(McpSettings)
    if given.owner_servers:
        need("mcp", "mcp", "TURNSTREAM_OWNER_SERVERS")
    elif not servers:
        return LoadedTools()
    else:
        need("mcp", "mcp", f"{declarations.source}: [mcp.{servers[0].name}]")
    from turnstream.extensions.mcp.app_tools import without_hidden  # the import takes a second
    from turnstream.extensions.mcp.own_servers import PREFIX, OwnServers
    from turnstream.extensions.mcp.servers import McpServers
    from turnstream.tools.tool import ToolSource

    with errors_named(f"{declarations.source}:"):
        _check_sign_in(settings, servers)
        source = McpServers(servers)
    prefixes, sources = [server.name_prefix for server in servers], list[ToolSource]([source])
    if given.owner_servers:
        prefixes.append(f"{PREFIX}__")
        sources.append(OwnServers(_allowed(given), declarations=declarations))
    return LoadedTools(sources=sources, prefixes=prefixes, connections=[source], offer=partial(without_hidden, sources))


def _allowed(given: McpSettings) -> "Allowed":
    from turnstream.libraries.outgoing.addresses import Allowed

    entries = (each.strip() for each in (given.owner_servers_allow or "").split(","))
    try:
        return Allowed.of(each for each in entries if each)
    except ValueError as error:
        raise ConfigError(f"TURNSTREAM_OWNER_SERVERS_ALLOW: {error}.") from None


def _check_sign_in(settings: Settings, servers: "Sequence[McpServer]") -> None:
    wanting = next((server.name for server in servers if server.oauth and not server.exchange), None)
    if wanting is not None and settings.section(McpSettings).sign_in_url is None:
        raise ValueError(
            f'[mcp.{wanting}]: `auth = "oauth"` needs TURNSTREAM_SIGN_IN_URL, the public address of this server'
        )


def _tool_sources(settings: Settings) -> "Sequence[SourceKind]":
    from turnstream.extensions.mcp.declared import McpTable
    from turnstream.libraries.tool_sources.kinds import SourceKind

    return [SourceKind("mcp", McpTable, partial(_make, settings))]


def _calls() -> "Sequence[CallGroup]":
    if find_spec("mcp") is None:  # the extra is not installed, so no server can be declared
        return ()
    from turnstream.extensions.mcp.calls import GROUP, OFFER_GROUP

    return [GROUP, OFFER_GROUP]


def _work(context: Context) -> Work:
    from turnstream.libraries.outgoing.owner_tokens import accesses_of

    accesses = accesses_of(context.toolset.own)
    # this test does not import the SDK
    sources = [source for source in context.toolset.sources if hasattr(source, "use")]
    if not sources and not accesses:
        return Work()
    sign_ins = _sign_ins(context, sources, accesses)
    exchanged = sign_ins is not None and any(server.exchange for server in sign_ins.servers.values())
    admit = sign_ins.exchanges.note if sign_ins is not None and exchanged else None
    from turnstream.extensions.mcp.offers import Offers
    from turnstream.extensions.mcp.servers import McpServers

    found = [each for source in sources if isinstance(source, McpServers) for each in source.connections]
    own = _own_servers(context, sign_ins)
    offers = Offers({each.server.name: each for each in found}, sign_ins, own) if found or sign_ins or own else None
    return Work(state=offers, admit=admit)


def _own_servers(context: Context, sign_ins: "SignIns | None") -> "OwnServers | None":
    """Returns the servers of owners; None if the operator does not allow them. Raises ConfigError if there is no key
    that encrypts headers.
    """
    from turnstream.extensions.mcp.oauth import OAuth
    from turnstream.extensions.mcp.own_servers import OwnServers
    from turnstream.extensions.mcp.sign_ins import SignIns
    from turnstream.libraries.secrets.master_keys import master_keys
    from turnstream.libraries.secrets.owner_keys import OwnerKeys

    own = next((each for each in context.toolset.sources if isinstance(each, OwnServers)), None)
    if own is not None:
        if (masters := master_keys(context.settings)) is None:
            raise ConfigError(
                "TURNSTREAM_OWNER_SERVERS needs TURNSTREAM_MASTER_KEY: headers are not stored in plain text."
            )
        keys = OwnerKeys(context.database, masters)
        accepted = sign_ins or SignIns(context.database, keys, OAuth(""), {}, context.notify)
        own.use(context.database, keys, accepted)
    return own


def _sign_ins(context: Context, sources: Sequence[object], accesses: "Sequence[ServiceAccess]") -> "SignIns | None":
    """Returns the sign-ins to all servers and services that require them; None if no server does. Raises ConfigError if
    the address of this server is not set, or if there is no key that encrypts tokens.
    """
    if accesses:
        need("mcp", "mcp", f'`auth = "oauth"` of tools of {accesses[0].service.name}')
    from turnstream.extensions.mcp.oauth import OAuth
    from turnstream.extensions.mcp.servers import McpServers
    from turnstream.extensions.mcp.sign_ins import SignIns
    from turnstream.libraries.secrets.master_keys import master_keys
    from turnstream.libraries.secrets.owner_keys import OwnerKeys

    found = [source for source in sources if isinstance(source, McpServers)]
    servers: dict[str, OAuthResource] = {}
    for source in found:
        servers |= source.with_sign_in
    for access in accesses:
        if servers.setdefault(access.service.name, access.service) != access.service:
            raise ConfigError(
                f"An MCP server and HTTP tools both have the name {access.service.name}: rename the server."
            )
    url = context.settings.section(McpSettings).sign_in_url
    wanting = next((server.name for server in servers.values() if not server.exchange), None)
    if accesses and url is None and wanting is not None:
        raise ConfigError(
            f'`auth = "oauth"` of {wanting} needs TURNSTREAM_SIGN_IN_URL, the public address of this server.'
        )
    if not servers or (url is None and wanting is not None):
        return None
    if (masters := master_keys(context.settings)) is None:
        raise ConfigError(f"`auth` of {min(servers)} needs TURNSTREAM_MASTER_KEY: tokens are not stored in plain text.")
    keys, oauth = OwnerKeys(context.database, masters), OAuth(str(url or "").rstrip("/"))
    sign_ins = SignIns(context.database, keys, oauth, servers, context.notify)
    for source in found:
        source.use(sign_ins)
    for access in accesses:
        access.tokens = sign_ins
    return sign_ins


async def _before_erasure(settings: Settings, database: "Database", owner: str) -> None:
    if find_spec("mcp") is not None:
        from turnstream.extensions.mcp.erasure import revoke_tokens

        await revoke_tokens(settings, database, owner)


EXTENSION = Extension(
    "mcp",
    "tools of MCP servers",
    settings=McpSettings,
    calls=_calls,
    tool_sources=_tool_sources,
    work=_work,
    before_erasure=_before_erasure,
)

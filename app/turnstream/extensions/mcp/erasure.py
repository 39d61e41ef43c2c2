"""Revokes the tokens of an owner at their issuers, before the owner is erased."""

import structlog

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.extension import selected
from turnstream.extensions.mcp.declared import servers_of
from turnstream.extensions.mcp.oauth import OAuth
from turnstream.extensions.mcp.sign_ins import GET_TOKENS, SignIns
from turnstream.libraries.outgoing.owner_tokens import OAuthResource, accesses_of
from turnstream.libraries.secrets.master_keys import master_keys
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.tool_sources.kinds import read_tools_file, source_kinds
from turnstream.libraries.tools_file_settings import ToolsFileSettings
from turnstream.storage.database import Database

log = structlog.get_logger(__name__)


async def revoke_tokens(settings: Settings, database: Database, owner: str) -> None:
    """Revokes the tokens of an owner at their issuers. A failed revocation does not stop the erasure, because the token
    expires on its own.
    """
    rows = await database.rows(GET_TOKENS, owner=owner)
    if not rows:
        return
    left = [row["server"] for row in rows]
    try:
        masters, servers = master_keys(settings, make=False), _servers_of(settings)
    except ConfigError as error:
        log.warning("mcp.not_revoked", owner=owner, servers=left, error=str(error))
        return
    if masters is not None:
        oauth = OAuth("")
        sign_ins = SignIns(database, OwnerKeys(database, masters), oauth, servers, lambda _owner, _chat: None)
        try:
            left = [row["server"] for row in rows if not await sign_ins.revoke(owner, row["server"], row["tokens"])]
        finally:
            await sign_ins.close()
    if left:
        log.warning("mcp.not_revoked", owner=owner, servers=left, error="the issuer has not confirmed it")


def _servers_of(settings: Settings) -> dict[str, OAuthResource]:
    """Returns the MCP servers, and the services of HTTP tools, that the tools file declares. Raises ConfigError."""
    kinds = source_kinds(settings, selected(settings))
    file = settings.section(ToolsFileSettings).tools_file
    declarations = read_tools_file(file, kinds, read_environment())
    tools = [tool for kind in kinds if kind.name == "http" for tool in kind.make(declarations).tools]
    services = [access.service for access in accesses_of(tools)]
    found: list[OAuthResource] = [*servers_of(declarations), *services]
    return {server.name: server for server in found}

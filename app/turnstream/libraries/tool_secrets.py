"""Replaces the secrets of tools in rows: headers of HTTP tools, and credentials for providers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from turnstream.domain.secret_headers import SERVERS_OF_PARAMS, servers_of
from turnstream.libraries.secrets.credentials import credentials_of, server_of, with_credentials
from turnstream.storage.rows import from_json, to_json

# Receives a server and the secret values for this server, and returns other values.
Change = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, str]]]

# The secrets of a trigger are not for a server. A `Change` receives this name in place of a server.
_TRIGGER: Final = "trigger"
# The JSON columns that contain such secrets, each with the primary key of its table. The digest of a tool set is kept
# when its secrets are encrypted: the digest identifies the set, and equals the digest of the set in plain text.
SECRET_COLUMNS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("browser_tokens", "fixed"): ("id",),
    ("chats", "settings"): ("id",),
    ("schedules", "request"): ("id",),
    ("schedules", "trigger"): ("id",),
    ("tool_sets", "tools"): ("owner", "digest"),
    ("turns", "request"): ("id",),
}


async def with_secrets(document: Any, change: Change) -> Any:
    """Returns a tool set, or the options of a chat, a turn, a token or a schedule, with the secrets that `change`
    returns.
    """
    if isinstance(document, list):
        return [await _tool(each, change) for each in document]
    changed = dict(document)
    if document.get("tools"):
        changed["tools"] = await with_secrets(document["tools"], change)
    if definitions := document.get("provider_tools"):
        changed["provider_tools"] = [to_json(await _definition(from_json(each), change)) for each in definitions]
    params = document.get("params") or {}
    if document.get("secrets"):
        changed["secrets"] = await change(_TRIGGER, document["secrets"])
    if servers := servers_of(params):
        changed["params"] = {**params, SERVERS_OF_PARAMS: [await _definition(each, change) for each in servers]}
    return changed


async def _tool(tool: Any, change: Change) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(tool.get("http"), Mapping):
        return {**tool, "http": await _tool(tool["http"], change)}
    if isinstance(tool.get("definition"), Mapping):
        return {**tool, "definition": await _definition(tool["definition"], change)}
    if tool.get("headers"):
        return {**tool, "headers": await change(tool["url"], tool["headers"])}
    return tool


async def _definition(definition: Mapping[str, Any], change: Change) -> Mapping[str, Any]:
    return with_credentials(definition, await change(server_of(definition), credentials_of(definition)))

"""Secrets in the tools that requests declare. The server stores these secrets for its calls, and shows them as stars.

Secrets are the headers of HTTP tools, and the credentials that a provider uses to call a server of the caller.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
# A reference to an operator's secret contains only the name of the secret, so it is not masked.
REFERENCE = re.compile(r"([A-Za-z]+ )?\$\{secret:\w+\}")
CREDENTIALS = ("authorization", "authorization_token")
# The model parameter that defines servers, each in the form of a provider's tool.
SERVERS_OF_PARAMS = "mcp_servers"


def servers_of(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the servers that model parameters define; empty if the value has another form."""
    servers = params.get(SERVERS_OF_PARAMS)
    if isinstance(servers, list) and all(isinstance(each, Mapping) for each in servers):
        return servers
    return []


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a chat with masked secrets."""
    masked = dict(settings)
    if settings.get("tools"):
        masked["tools"] = list(map(masked_tool, settings["tools"]))
    if servers := servers_of(settings.get("params") or {}):
        masked["params"] = {**settings["params"], SERVERS_OF_PARAMS: list(map(masked_tool, servers))}
    return masked


def masked_tool(tool: Any, mask: str = MASK) -> Any:
    """Masks the secrets of a tool in settings or in a turn's request, or of a server that a provider calls."""
    if not isinstance(tool, Mapping):
        return tool
    return {name: _masked(name, value, mask) for name, value in tool.items()}


def has_secrets(tool: Any) -> bool:
    """Returns whether a tool or a server contains a secret or a mask."""
    return bool(masked_tool(tool, "") != tool)


def _masked(name: str, value: Any, mask: str) -> Any:
    if name in {"http", "definition"}:
        return masked_tool(value, mask)
    if name == "headers" and isinstance(value, Mapping):
        return {header: _masked(CREDENTIALS[0], each, mask) for header, each in value.items()}
    is_secret = name in CREDENTIALS and isinstance(value, str) and not REFERENCE.fullmatch(value)
    return mask if is_secret else value

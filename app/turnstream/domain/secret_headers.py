"""Secrets of tools that requests declare: values that are kept for the calls, and shown as stars.

They are the headers of HTTP tools, and the credentials with which a provider calls a server of the caller.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
# The name of an operator's secret is no secret.
_REFERENCE = re.compile(r"([A-Za-z]+ )?\$\{secret:\w+\}")
_CREDENTIALS = ("authorization", "authorization_token")
_HEADERS = "headers."
# Names of a server to which a provider sends the credentials.
_SERVERS = ("server_url", "url", "connector_id")
# The parameter that has definitions of servers as tools of providers do.
SERVERS_OF_PARAMS = "mcp_servers"


def credentials_of(definition: Mapping[str, Any]) -> dict[str, str]:
    """The secrets of a provider's tool, or of a server that a provider calls, by name. A header `x` is `headers.x`."""
    headers = definition.get("headers")
    found = {name: definition.get(name) for name in _CREDENTIALS}
    found |= {f"{_HEADERS}{name}": value for name, value in headers.items()} if isinstance(headers, Mapping) else {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def with_credentials(definition: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """The definition with other `values` of its credentials."""
    changed = {name: values.get(name, value) for name, value in definition.items()}
    if isinstance(headers := changed.get("headers"), Mapping):
        changed["headers"] = {name: values.get(f"{_HEADERS}{name}", value) for name, value in headers.items()}
    return changed


def server_of(definition: Mapping[str, Any]) -> str:
    """The server that the provider calls with the credentials."""
    return next((value for name in _SERVERS if isinstance(value := definition.get(name), str)), "")


def servers_of(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The servers that model parameters define, or none if their value has another form."""
    servers = params.get(SERVERS_OF_PARAMS)
    if isinstance(servers, list) and all(isinstance(each, Mapping) for each in servers):
        return servers
    return []


def needs_sealing(value: str) -> bool:
    """Whether the value of a header is to be encrypted in rows: a mask or a reference is no secret."""
    return value != MASK and not _REFERENCE.fullmatch(value)


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a chat as they are shown."""
    masked = dict(settings)
    if settings.get("tools"):
        masked["tools"] = list(map(masked_tool, settings["tools"]))
    if settings.get("params"):
        masked["params"] = masked_params(settings["params"])
    return masked


def masked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    masked = dict(params)
    if servers := servers_of(params):
        masked[SERVERS_OF_PARAMS] = list(map(masked_definition, servers))
    return masked


def masked_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    return with_credentials(definition, _masked(credentials_of(definition)))


def masked_tool(tool: Any) -> Any:
    """A tool as it is stored in settings, or in the request of a turn, without the values of its headers."""
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(tool.get("http"), Mapping):
        return {**tool, "http": masked_tool(tool["http"])}
    if isinstance(tool.get("definition"), Mapping):
        return {**tool, "definition": masked_definition(tool["definition"])}
    if not tool.get("headers"):
        return tool
    return {**tool, "headers": _masked(tool["headers"])}


def _masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value if _REFERENCE.fullmatch(value) else MASK for name, value in values.items()}

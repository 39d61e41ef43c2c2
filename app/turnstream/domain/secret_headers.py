"""Headers of HTTP tools that requests declare: values that are kept for the calls, and shown as stars."""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
# The name of an operator's secret is no secret.
_REFERENCE = re.compile(r"([A-Za-z]+ )?\$\{secret:\w+\}")


def needs_sealing(value: str) -> bool:
    """Whether the value of a header is to be encrypted in rows: a mask or a reference is no secret."""
    return value != MASK and not _REFERENCE.fullmatch(value)


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a chat as they are shown."""
    return {**settings, "tools": list(map(masked_tool, settings["tools"]))} if settings.get("tools") else dict(settings)


def masked_tool(tool: Any) -> Any:
    """A tool as it is stored in settings, or in the request of a turn, without the values of its headers."""
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(tool.get("http"), Mapping):
        return {**tool, "http": masked_tool(tool["http"])}
    if not tool.get("headers"):
        return tool
    headers = {name: value if _REFERENCE.fullmatch(value) else MASK for name, value in tool["headers"].items()}
    return {**tool, "headers": headers}

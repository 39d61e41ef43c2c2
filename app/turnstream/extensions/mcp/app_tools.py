"""Tools with an app (`io.modelcontextprotocol/ui`): the members of their definitions."""

from collections.abc import Mapping
from typing import Any, Final

from mcp import types
from mcp.client.extension import ClientExtension

from turnstream.kit.text import storable

MEDIA_TYPE: Final = "text/html;profile=mcp-app"
_LONGEST: Final = 2_000  # characters of an address


class AppExtension(ClientExtension):
    identifier = "io.modelcontextprotocol/ui"

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [MEDIA_TYPE]}


def app_of(tool: types.Tool) -> str | None:
    """The address of the app of a tool."""
    uri = _ui(tool).get("resourceUri", (tool.meta or {}).get("ui/resourceUri"))
    is_app = isinstance(uri, str) and uri.startswith("ui://") and len(uri) <= _LONGEST
    return storable(uri) if is_app else None


def is_for_models(tool: types.Tool) -> bool:
    """False for a tool that its server offers to apps alone."""
    visibility = _ui(tool).get("visibility")
    return not isinstance(visibility, list) or "model" in visibility


def _ui(tool: types.Tool) -> Mapping[str, Any]:
    found = (tool.meta or {}).get("ui")
    return found if isinstance(found, Mapping) else {}

"""Reads the definitions of tools that have an app (`io.modelcontextprotocol/ui`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from mcp import types
from mcp.client.extension import ClientExtension

from turnstream.domain.turns import TurnRequest
from turnstream.kit.text import storable
from turnstream.libraries.dialects.apps import MEDIA_TYPE
from turnstream.tools.tool import ToolSource

_LONGEST: Final = 2_000  # characters of an address


class AppExtension(ClientExtension):
    identifier = "io.modelcontextprotocol/ui"

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [MEDIA_TYPE]}


def app_of(tool: types.Tool) -> str | None:
    """Returns the address of the app that a tool has; None if the tool has no app."""
    uri = _ui(tool).get("resourceUri", (tool.meta or {}).get("ui/resourceUri"))
    is_app = isinstance(uri, str) and uri.startswith("ui://") and len(uri) <= _LONGEST
    return storable(uri) if is_app else None


def is_for(tool: types.Tool, caller: Literal["model", "app"]) -> bool:
    """Whether the server offers the tool to `caller`. By default, a server offers a tool both to models and to apps."""
    visibility = _ui(tool).get("visibility")
    return not isinstance(visibility, list) or caller in visibility


def without_hidden(sources: Sequence[ToolSource], request: TurnRequest) -> TurnRequest:
    """Returns the request without the tools that are only for apps. Otherwise a message in an app's chat would inherit
    them.
    """
    hidden = {name for source in sources for name, tool in source.tools().items() if getattr(tool, "hidden", False)}
    if hidden.isdisjoint(spec.name for spec in request.tools):
        return request
    return replace(request, tools=tuple(spec for spec in request.tools if spec.name not in hidden))


def _ui(tool: types.Tool) -> Mapping[str, Any]:
    found = (tool.meta or {}).get("ui")
    return found if isinstance(found, Mapping) else {}

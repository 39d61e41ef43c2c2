"""MCP Apps (`io.modelcontextprotocol/ui`): pages that servers add to the results of their tools.

A page runs in a frame with an opaque origin. The policy of the frame allows only the origins that the page's resource
declares.
"""

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from mcp import MCPError, types

from turnstream.extensions.mcp.connection import McpConnection
from turnstream.extensions.mcp.owner_calls import SignInNeeded
from turnstream.kit.text import storable
from turnstream.libraries.dialects.apps import MEDIA_TYPE
from turnstream.tools.tool import ToolError

_LONGEST: Final = 1_000_000  # characters of a page
_MOST_ORIGINS: Final = 20
_ORIGIN: Final = re.compile(r"(?:https|wss)://(?:\*\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class AppPage:
    """The HTML of an app. `connect` has the origins to which its requests may go; `load` has the origins of its
    scripts, styles and media.
    """

    html: str
    connect: Sequence[str] = ()
    load: Sequence[str] = ()

    @property
    def frame(self) -> str:
        """The address of the empty frame, relative to the page around the frame."""
        query = urlencode([("connect", each) for each in self.connect] + [("load", each) for each in self.load])
        return f"mcp-app?{query}" if query else "mcp-app"


def origins_of(given: object) -> list[str]:
    """Returns the origins in a list that a policy may contain. Drops all other origins."""
    listed = given if isinstance(given, list) else []
    return [each for each in listed[:_MOST_ORIGINS] if isinstance(each, str) and _ORIGIN.fullmatch(each)]


def policy_of(connect: Sequence[str], load: Sequence[str]) -> str:
    """Returns the Content-Security-Policy of a frame. `sandbox` makes the frame's origin opaque, even if the element of
    the frame has no such attribute.
    """
    loaded = " ".join(load)
    directives = {
        "sandbox": "allow-scripts",
        "default-src": "'none'",
        "script-src": f"'unsafe-inline' {loaded}",
        "style-src": f"'unsafe-inline' {loaded}",
        "img-src": f"data: blob: {loaded}",
        "font-src": f"data: {loaded}",
        "media-src": f"data: blob: {loaded}",
        "connect-src": " ".join(connect) or "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'self'",
    }
    return "; ".join(f"{name} {value}".strip() for name, value in directives.items())


async def read_app(owner: str, connection: McpConnection, uri: str) -> AppPage:
    """Returns the page of an app. Raises ToolError and ToolUnavailable."""
    name = connection.server.name
    try:
        result = await connection.use_as(owner, lambda session: session.resource(uri))
    except SignInNeeded:
        raise ToolError(f"{name} needs a sign-in first: it is offered when a tool of this server is called.") from None
    except MCPError as error:
        raise ToolError(f"{name} has refused this: {storable(error.message[: _MOST_ORIGINS * 50])}") from error
    content = next((each for each in result.contents if _is_app(each)), None)
    if content is None:
        raise ToolError(f"The resource is no app: its media type is not {MEDIA_TYPE}.")
    html = _text_of(content)
    if len(html) > _LONGEST:
        raise ToolError(f"The app has more than {_LONGEST:,} characters.")
    csp = _member(_member(content.meta, "ui"), "csp")
    return AppPage(html, origins_of(csp.get("connectDomains")), origins_of(csp.get("resourceDomains")))


def _is_app(content: types.TextResourceContents | types.BlobResourceContents) -> bool:
    return (content.mime_type or "").replace(" ", "").lower() == MEDIA_TYPE


def _text_of(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    if isinstance(content, types.TextResourceContents):
        return storable(content.text)
    try:
        return storable(b64decode(content.blob, validate=True).decode(errors="replace"))
    except ValueError:
        raise ToolError("The app cannot be read: its content is not base64.") from None


def _member(value: object, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}

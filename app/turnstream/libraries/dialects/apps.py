"""Apps of MCP servers, for dialects: finds the app of a result, and the extension that hosts the apps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from uuid import UUID

from turnstream.api.codec import parsed
from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.results import count_files, parts_of
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey

MEDIA_TYPE: Final = "text/html;profile=mcp-app"


@dataclass(frozen=True, slots=True)
class ResultApp:
    """The app that belongs to a result: a page at `uri` of an MCP server."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call that an app requests. `app` is the id of the call in `turn` whose result has the app. `name` is the tool's
    name on the MCP server.
    """

    chat: UUID
    turn: UUID
    app: str
    name: str
    arguments: Mapping[str, Any]


class AppHost(Protocol):
    """The part of the extension `mcp` that dialects use."""

    async def app_page(self, owner: str, server: str, uri: str) -> Mapping[str, Any]:
        """Returns the resource of an app, in the form that MCP defines. Raises NotFound, RequestRefused and
        Unavailable.
        """
        ...

    async def call_from_app(
        self, services: Services, owner: str, wanted: WantedCall, key: IdempotencyKey | None
    ) -> Exchange:
        """Posts an app's call as a turn. Raises NotFound, RequestRefused, TooMany; Conflict after too many calls."""
        ...


def app_host(services: Services) -> AppHost | None:
    return cast("AppHost | None", services.states.get("mcp"))


def app_of(block: Block) -> ResultApp | None:
    """Returns the app of a result, or None if the block has no app."""
    if block.type != TOOL_RESULT or block.client_data is None or '"ui"' not in block.client_data:
        return None
    data = parsed(block.client_data)
    ui = data.get("ui") if isinstance(data, dict) else None
    server, uri = (ui.get("server"), ui.get("resourceUri")) if isinstance(ui, dict) else (None, None)
    if not isinstance(server, str) or not isinstance(uri, str) or not uri.startswith("ui://"):
        return None
    return ResultApp(server, uri)


def mcp_result(block: Block) -> dict[str, Any]:
    """Returns a result in the form that MCP defines: its texts and files, and the data that its server sent for
    clients.
    """
    data = parsed(block.client_data or "{}")
    content = parts_of(block) if count_files(block) else [{"type": "text", "text": block.text}]
    kept = {name: data[name] for name in ("structuredContent", "_meta") if name in data}
    return {"content": content, **kept, "isError": block.is_error}

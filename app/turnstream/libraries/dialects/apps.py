"""Apps of MCP servers in dialects: the app of a result, and the state of the extension with the apps."""

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
    """The app of a result: a page at `uri` of an MCP server."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call requested by an app. `app` is the id of the call, in `turn`, with the app in its result. `name` is the
    server's own name for the tool.
    """

    chat: UUID
    turn: UUID
    app: str
    name: str
    arguments: Mapping[str, Any]


class AppHost(Protocol):
    """The state of the extension `mcp`."""

    async def app_page(self, owner: str, server: str, uri: str) -> Mapping[str, Any]:
        """The resource of an app, in MCP's form. Raises NotFound, RequestRefused and Unavailable."""
        ...

    async def call_from_app(
        self, services: Services, owner: str, wanted: WantedCall, key: IdempotencyKey | None
    ) -> Exchange:
        """Posts an app's call as a turn. Raises NotFound, RequestRefused, TooMany; Conflict after too many calls."""
        ...


def app_host(services: Services) -> AppHost | None:
    return cast("AppHost | None", services.states.get("mcp"))


def app_of(block: Block) -> ResultApp | None:
    """The app of a result; None for a block without one."""
    if block.type != TOOL_RESULT or block.client_data is None or '"ui"' not in block.client_data:
        return None
    data = parsed(block.client_data)
    ui = data.get("ui") if isinstance(data, dict) else None
    server, uri = (ui.get("server"), ui.get("resourceUri")) if isinstance(ui, dict) else (None, None)
    if not isinstance(server, str) or not isinstance(uri, str) or not uri.startswith("ui://"):
        return None
    return ResultApp(server, uri)


def mcp_result(block: Block) -> dict[str, Any]:
    """A result in MCP's form: its texts and files, and its server's data for clients."""
    data = parsed(block.client_data or "{}")
    content = parts_of(block) if count_files(block) else [{"type": "text", "text": block.text}]
    kept = {name: data[name] for name in ("structuredContent", "_meta") if name in data}
    return {"content": content, **kept, "isError": block.is_error}

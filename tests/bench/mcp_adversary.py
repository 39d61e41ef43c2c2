"""An MCP server that sends too much or too slowly, or lists 5,000 tools. It uses a version of the protocol from before
2026-07-28.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.extensions.mcp.mcp_hostile import answer_of

CALLED = ("long", "values", "endless", "slow", "swell", "shrink")
# The time limit of a call, in seconds.
PATIENCE = 5
_PAGES, _ON_A_PAGE = 10, 500
_OBJECT: Mapping[str, Any] = {"type": "object"}
_WIDE = {**_OBJECT, "properties": {f"property_{number}": {"type": "string"} for number in range(8)}}
_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class McpAdversary:
    """The server. A call of `swell` grows the list to 5,000 tools, and `shrink` restores the list. Both answers report
    that the list has changed.
    """

    def __init__(self) -> None:
        self._is_swollen = False

    def answer(self, message: dict[str, Any]) -> tuple[str, Iterator[bytes]]:
        """Returns the content type and the chunks of the response."""
        params = message.get("params") or {}
        if message["method"] == "tools/list":
            page = self._page(int(params.get("cursor") or 0))
            return "application/json", iter([_result(message["id"], page)])
        match params.get("name"):
            case "swell" | "shrink" as tool:
                self._is_swollen = tool == "swell"
                result = _result(message["id"], {"content": [{"type": "text", "text": tool}]})
                return "text/event-stream", (b"data: %b\n\n" % each for each in (json.dumps(_CHANGED).encode(), result))
            case "slow":
                return "application/json", _dripping()
            case _:
                return "application/json", answer_of(message, "")

    def _page(self, number: int) -> Mapping[str, Any]:
        tools = [{"name": name, "inputSchema": _OBJECT} for name in CALLED]
        if not self._is_swollen:
            return {"tools": tools}
        tools += [
            {"name": f"tool_{number}_{each}", "description": "Looks. " * 30, "inputSchema": _WIDE}
            for each in range(_ON_A_PAGE)
        ]
        return {"tools": tools} | ({"nextCursor": str(number + 1)} if number + 1 < _PAGES else {})


def _result(id: object, result: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


def _dripping() -> Iterator[bytes]:
    while True:
        yield b" "
        time.sleep(0.2)

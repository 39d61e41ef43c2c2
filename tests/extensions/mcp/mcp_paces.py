"""An MCP server over stdio for cases that no packaged server covers: progress, hanging calls, tools that appear later.

`python -m tests.extensions.mcp.mcp_paces` starts the server. With `--old`, it speaks a protocol from before 2026-07-28.
"""

import asyncio
import base64
import sys

from mcp import stdio_server, types
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.runner import serve_loop
from mcp.types import ToolAnnotations

from tests.support.pictures import PIXEL

abandoned = asyncio.Event()


server = MCPServer("paces")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def walk(steps: int, context: Context) -> str:
    """Walk, and tell of every step."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"step {step}")
    await context.report_progress(steps, steps)
    return "arrived"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
async def hang(context: Context) -> str:
    """Never come back."""
    await context.report_progress(0, None, "hanging")
    try:
        await asyncio.Event().wait()
    finally:
        abandoned.set()
    return "unreachable"


@server.tool(name="was.abandoned", structured_output=False)
async def was_abandoned() -> str:
    """Return as soon as `hang` was cancelled."""
    await abandoned.wait()
    return "yes"


@server.tool(structured_output=False)
async def grow(context: Context) -> str:
    """Have one more tool."""
    server.add_tool(was_abandoned, name="grown", structured_output=False)
    await context.notify_tools_changed()
    if "--old" in sys.argv:
        await context.session.send_tool_list_changed()
    return "grown"


@server.tool(structured_output=False)
async def show() -> list[types.ContentBlock]:
    """Return content that is not text."""
    data = base64.b64encode(PIXEL).decode()
    return [types.ImageContent(type="image", data=data, mime_type="image/png")]


@server.tool()
async def measure() -> dict[str, int]:
    """Return structured data."""
    return {"width": 3}


async def speak_as_before() -> None:
    inner = server._lowlevel_server
    options = inner.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write), inner.lifespan(inner) as state:
        await serve_loop(inner, read, write, lifespan_state=state, init_options=options)


if __name__ == "__main__":
    if "--old" in sys.argv:
        asyncio.run(speak_as_before())
    else:
        server.run()

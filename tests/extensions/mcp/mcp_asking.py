"""An MCP server over stdio whose tools ask the user.

`python -m tests.extensions.mcp.mcp_asking` starts the server. With `--old`, the server speaks a protocol from before
2026-07-28, in which it asks during the call.
"""

import asyncio
import sys
from typing import Any

from mcp import stdio_server, types
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.runner import serve_loop
from pydantic import BaseModel

server = MCPServer("asking")
OLD = "--old" in sys.argv


class Stay(BaseModel):
    nights: int
    quiet: bool = False


@server.tool(structured_output=False)
async def book(port: str, context: Context) -> Any:
    """Book a berth, after asking for how long."""
    words = f"How many nights in {port}?"
    if OLD:
        answered = await context.elicit(words, Stay)
        return f"{port} {answered.action} {getattr(answered, 'data', None)}"
    if context.input_responses is None:
        form = types.ElicitRequestFormParams(message=words, requested_schema=Stay.model_json_schema())
        return types.InputRequiredResult(input_requests={"stay": types.ElicitRequest(params=form)}, request_state=port)
    answer = context.input_responses["stay"]
    assert isinstance(answer, types.ElicitResult)
    return f"{port} {answer.action} {answer.content}"


@server.tool(structured_output=False)
async def sign_in(url: str, context: Context) -> Any:
    """Send the person to a page."""
    if OLD:
        answered = await context.elicit_url("Sign in there.", url, "sign-in")
        return f"signed in: {answered.action}"
    if context.input_responses is None:
        page = types.ElicitRequestURLParams(message="Sign in there.", url=url, elicitation_id="sign-in")
        return types.InputRequiredResult(input_requests={"page": types.ElicitRequest(params=page)}, request_state="")
    answer = context.input_responses["page"]
    assert isinstance(answer, types.ElicitResult)
    return f"signed in: {answer.action}"


async def speak_as_before() -> None:
    inner = server._lowlevel_server
    options = inner.create_initialization_options(NotificationOptions())
    async with stdio_server() as (read, write), inner.lifespan(inner) as state:
        await serve_loop(inner, read, write, lifespan_state=state, init_options=options)


if __name__ == "__main__":
    if OLD:
        asyncio.run(speak_as_before())
    else:
        server.run()

"""An MCP server continues the trace of the turn."""

import sys

from tests.support.http_client import Client, said
from tests.support.http_server import serving
from tests.support.spans import PARENT, TRACE, collected
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.toolset import Toolset
from turnstream.tracing import trace_id

MCP = """
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("far")

@server.tool(structured_output=False)
async def parent(context: Context) -> str:
    return str((context.request_context.meta or {}).get("traceparent"))

server.run("stdio")
"""


async def test_a_call_has_the_traceparent_in_its_meta(database_url: str) -> None:
    with collected():
        async with (
            McpServers([McpServer("far", command=sys.executable, args=("-c", MCP))]) as mcp,
            serving(database_url, Toolset([], sources=[mcp])) as server,
            Client(server.url) as api,
        ):
            model = server.scripts.model(message_of(tool_use("far__parent", {}, "b")), message_of(text("Done.")))
            message = {**said("Call."), "model": model}
            asked = await api.json("POST", "/api/turns", 201, json=message, headers={"traceparent": PARENT})
            await api.events(asked["stream_url"])
            turn = await api.json("GET", asked["stream_url"].removesuffix("/stream"))
    (parent,) = [block["text"] for block in turn["blocks"] if block["type"] == "tool_result"]
    assert trace_id(parent) == TRACE

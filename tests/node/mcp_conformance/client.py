"""The client that MCP's conformance suite tests. The suite starts it with the URL of a server. The client consists of
turnstream, whose turns call the server's tools, and of a browser that signs in.
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp import types

from tests.extensions.mcp.test_sign_in import Browser
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.server_process import free_port
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.mcp.tool import tool_of
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.schemas import SchemaRoom
from turnstream.tools.toolset import Toolset

INPUTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
MOST_ASKS = 5
SECONDS = 100  # less than the timeout of the suite


async def main(url: str) -> None:
    scenario, context = (
        os.environ["MCP_CONFORMANCE_SCENARIO"],
        json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    )
    port, signs_in = free_port(), scenario.startswith("auth/")
    base = f"http://127.0.0.1:{port}"
    declared = McpServer(
        "conformance",
        url=url,
        oauth=signs_in,
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
    )
    async with McpServers([declared], McpTiming(connect_timeout=5)) as servers:
        if signs_in:  # these servers list tools only with a user's token, which an operator does not have
            (connection,) = servers._connections.values()
            listed = types.Tool(name="test-tool", input_schema={"type": "object"})
            tool = tool_of(declared, listed, connection.call, SchemaRoom(), connection.task)
            connection.tools = {tool.spec.name: tool}
        names = list(servers.tools())
        async with (
            serving(
                os.environ["CONFORMANCE_DATABASE"],
                Toolset([], sources=[servers]),
                sign_in_url=base,
                master_key=os.environ["CONFORMANCE_KEY"],
                port=port,
            ) as site,
            Client(site.url, None) as client,
        ):
            for name in names:
                await call(site, client, base, name)


async def call(site: Server, client: Client, base: str, name: str) -> None:
    arguments = INPUTS.get(name.partition("__")[2], {})
    model = site.scripts.model(message_of(tool_use(name, arguments, "call")), message_of(text("Done.")))
    turn = await client.say(await client.chat(), model=model)
    for _ in range(MOST_ASKS):
        action = await next_action(client, turn)
        if action is None:
            break
        if action["type"] == "sign_in":
            await sign_in(base, action["input"]["url"])
        else:
            ids = {name: action[name] for name in ("tool_use_id", "input_digest")}
            accepted = {"actions": [{"type": "answer", **ids, "action": "accept"}]}
            await client.json("POST", f"{turn.url}/actions", 202, json=accepted)
    stored = await client.json("GET", turn.url)
    print(json.dumps([block for block in stored["blocks"] if block["type"] == "tool_result"]))


async def next_action(client: Client, turn: Said) -> dict[str, Any] | None:
    """Returns the next waiting call, or None at the end of the turn."""
    async with client.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                found: dict[str, Any] = event.data["calls"][0]
                return found
    return None


async def sign_in(base: str, link: str) -> None:
    async with Browser(base, base) as browser:
        consent = await browser.proceed(link)
        back = await browser.open(consent.headers["location"])
        await browser.open(back.headers["location"])


async def bounded(url: str) -> None:
    """Runs `main` with a time limit. If the limit expires, prints the stacks of all tasks for the suite's report."""
    try:
        async with asyncio.timeout(SECONDS):
            await main(url)
    except TimeoutError:
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)
        raise


if __name__ == "__main__":
    asyncio.run(bounded(sys.argv[1]))

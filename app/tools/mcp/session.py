"""One connection to an MCP server, from its handshake to its end."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

from mcp import MCPError, types
from mcp.client import Client, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT

from app.tools.declared.declarations import McpServer
from app.tools.mcp.transport import transport_to

_MOST_PAGES = 100
_LISTEN_AGAIN = 5.0


class McpSession:
    """Calls are made from any task. `doubted`: a call failed in a way that may mean that nobody is there."""

    def __init__(self) -> None:
        self.client: Client
        self.doubted = False
        self._ended = False
        self._calls = 0
        self._wake = asyncio.Event()

    def end(self) -> None:
        self._ended = self.doubted = True
        self._wake.set()

    async def hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._wake.set()

    async def stale(self) -> None:
        """Returns when the tools should be listed again, because they changed or to see whether anybody is there.
        Raises ConnectionError when the connection has ended.
        """
        await self._wake.wait()
        self._wake.clear()
        if self._ended:
            raise ConnectionResetError("the server ended the connection")

    async def list_tools(self) -> list[types.Tool]:
        page = await self.client.list_tools()
        tools = page.tools
        for _ in range(_MOST_PAGES):
            if page.next_cursor is None:
                break
            page = await self.client.list_tools(cursor=page.next_cursor)
            tools += page.tools
        self.doubted = False
        return tools

    async def listen(self) -> None:
        """Keeps a subscription open with servers that tell of changes in no other way."""
        tools = self.client.server_capabilities.tools
        with suppress(ListenNotSupportedError):
            while tools is not None and tools.list_changed:
                with suppress(MCPError, SubscriptionLost):
                    await self._listen_once()
                self._wake.set()
                await asyncio.sleep(_LISTEN_AGAIN)

    async def _listen_once(self) -> None:
        async with self.client.listen(tools_list_changed=True) as changes:
            self._wake.set()  # for what changed since they were listed
            async for _ in changes:
                self._wake.set()

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        self._calls += 1
        abandoned = False
        try:
            return await self.client.call_tool(tool, dict(arguments), progress_callback=progress)
        except MCPError as error:
            if error.code != types.INVALID_PARAMS:
                self.doubted = True
                self._wake.set()
            raise
        except asyncio.CancelledError:
            abandoned = True
            raise
        finally:
            self._calls -= 1
            if abandoned and not self._calls:  # somebody's patience ended: is the server only slow, or stuck?
                self._wake.set()


@asynccontextmanager
async def session_with(server: McpServer) -> AsyncIterator[McpSession]:
    """To be left in the task that entered it."""
    session = McpSession()
    client = Client(
        transport_to(server, session.end),
        message_handler=session.hear,
        client_info=types.Implementation(name="turnstream", version=version("turnstream")),
        cache=None,
    )
    async with client as session.client:
        yield session

"""The MCP servers of a replica, as one source of tools. Tools stay listed while their server is away."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from app.tools.declared.declarations import McpServer
from app.tools.mcp.connection import Changes, McpConnection
from app.tools.tool import Tool


class McpServers:
    """Connects on entry, and waits up to `connect_timeout` seconds until every server was tried once. The other times
    are those of McpConnection. Raises ValueError if the tools of two servers would have the same names.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        *,
        connect_timeout: float = 5.0,
        start_timeout: float = 30.0,
        answer_timeout: float = 10.0,
        pause: float = 1.0,
    ) -> None:
        self.changes = Changes()
        self._connect_timeout = connect_timeout
        self._connections: dict[str, McpConnection] = {}
        self._tasks: list[asyncio.Task[NoReturn]] = []
        for server in servers:
            prefix = server.name_prefix
            if prefix in self._connections:
                raise ValueError(f"the tools of two MCP servers would begin with {prefix}: give one server a `prefix`")
            self._connections[prefix] = McpConnection(
                server,
                self.changes,
                connect_timeout=connect_timeout,
                start_timeout=start_timeout,
                answer_timeout=answer_timeout,
                pause=pause,
            )

    @property
    def connected(self) -> frozenset[str]:
        """The names of the servers that are connected now."""
        return frozenset(each.server.name for each in self._connections.values() if each.connected)

    def tools(self) -> Mapping[str, Tool]:
        """The tools that each server listed last, connected or not."""
        return {name: tool for each in self._connections.values() for name, tool in each.tools.items()}

    async def __aenter__(self) -> Self:
        for each in self._connections.values():
            self._tasks.append(asyncio.create_task(each.run(), name=f"mcp {each.server.name}"))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._connect_timeout):
                    await self.changes.until(lambda: all(each.tried for each in self._connections.values()))
        except asyncio.CancelledError:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

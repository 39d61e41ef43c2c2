"""The MCP servers of a replica, as one source of tools. After a failure, a server is reconnected; the tools that it
listed last remain available.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn, Self

from turnstream.extensions.mcp.connection import Changes, McpConnection, McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.owner_lists import OwnerLists
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.tools.tool import Tool


class McpServers:
    """Connects to the servers on entry, and waits up to `connect_timeout` for the first attempt at each server. Raises
    ValueError if the tools of two servers would have the same names.
    """

    def __init__(self, servers: Iterable[McpServer], timing: McpTiming | None = None) -> None:
        self.changes = Changes()
        self._timing = timing or McpTiming()
        self._connections: dict[str, McpConnection] = {}
        self._lists: list[OwnerLists] = []
        self._tasks: list[asyncio.Task[NoReturn]] = []
        self._sign_ins: SignIns | None = None
        for server in servers:
            prefix = server.name_prefix
            if prefix in self._connections:
                raise ValueError(f"the tools of two MCP servers would begin with {prefix}: give one server a `prefix`")
            connection = self._connections[prefix] = McpConnection(server, self.changes, self._timing)
            if server.owner_tools:
                self._lists.append(OwnerLists(connection, self._timing.shortest_ttl, self._timing.start_timeout))

    @property
    def _kept_open(self) -> Sequence[McpConnection]:
        """The connections that all owners share."""
        return [each for each in self._connections.values() if not each.server.owner_tools]

    @property
    def connected(self) -> frozenset[str]:
        """The names of the connected servers."""
        return frozenset(each.server.name for each in self._connections.values() if each.connected)

    async def failures(self) -> Mapping[str, str]:
        """Waits for the first attempt at each server. Returns the failure of each server, or an empty text if it is
        connected.
        """
        await self.changes.until(lambda: all(each.tried for each in self._kept_open))
        return {
            f"MCP {each.server.name}": "" if each.connected else each.failure or "no answer" for each in self._kept_open
        }

    def tools(self) -> Mapping[str, Tool]:
        """Returns the tools that each server listed last, whether the server is connected or not."""
        lists: list[Mapping[str, Tool]] = [each.tools for each in self._kept_open]
        lists += [each.tools for each in self._lists]
        return {name: tool for tools in lists for name, tool in tools.items()}

    @property
    def connections(self) -> Sequence[McpConnection]:
        return list(self._connections.values())

    @property
    def with_sign_in(self) -> Mapping[str, McpServer]:
        """The servers to which owners sign in, by name."""
        return {each.server.name: each.server for each in self._connections.values() if each.server.oauth}

    def use(self, sign_ins: SignIns) -> None:
        """Sets the sign-ins, so that owners can sign in. Called when the server runs."""
        self._sign_ins = sign_ins
        for each in self._connections.values():
            each.sign_ins = sign_ins

    async def __aenter__(self) -> Self:
        for each in self._kept_open:
            self._tasks.append(asyncio.create_task(each.run(), name=f"mcp {each.server.name}"))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.connect_timeout):
                    await self.changes.until(lambda: all(each.tried for each in self._kept_open))
        except asyncio.CancelledError:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sign_ins is not None:
            await self._sign_ins.close()

"""One MCP server, and whatever it takes to stay connected to it."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

import structlog
from mcp import MCPError, types
from mcp.shared.dispatcher import ProgressFnT

from app.telemetry import MCP_CONNECTED
from app.tools.declared.declarations import McpServer
from app.tools.mcp.session import McpSession, session_with
from app.tools.mcp.tool import McpTool, tool_of
from app.tools.policy import repeatable
from app.tools.tool import ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

_STEADY = 10.0  # who stayed for so many seconds is tried again at once
_LONGEST_PAUSE = 60.0
# What is raised inside a client leaves its task groups as an ExceptionGroup.
_FAILURES = (OSError, ValueError, MCPError, ExceptionGroup)


class Changes:
    """Wakes whoever waits for something to have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._next.wait()


class McpConnection:
    """`run` connects, and connects again; the `tools` that were listed last stay meanwhile. A server gets
    `start_timeout` seconds to start, and `answer_timeout` to list its tools again. Pauses between attempts that fail
    begin with `pause` seconds, and double. A call waits up to `patience` seconds for an attempt that is under way.
    """

    def __init__(
        self,
        server: McpServer,
        changed: Changes,
        *,
        patience: float,
        start_timeout: float,
        answer_timeout: float,
        pause: float,
    ) -> None:
        self.server = server
        self.tools: Mapping[str, McpTool] = {}
        self.tried = False
        self._changed = changed
        self._patience = patience
        self._start_timeout = start_timeout
        self._answer_timeout = answer_timeout
        self._pause = pause
        self._session: McpSession | None = None
        self._since: float | None = None
        self._pausing = False
        MCP_CONNECTED.labels(server.name).set(0)

    @property
    def connected(self) -> bool:
        return self._session is not None and not self._session.doubted

    # --- staying connected -------------------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """In one task: a client must be left in the task that entered it."""
        failures = 0
        while True:
            self._since = None
            try:
                await self._attempt()
            except _FAILURES as error:
                self._report(error)
            failures = 0 if self._was_steady() else failures + 1
            await self._rest(failures)

    async def _attempt(self) -> None:
        async with asyncio.timeout(self._start_timeout) as limit, session_with(self.server) as session:
            self._take(await session.list_tools())
            limit.reschedule(None)
            await self._keep(session)

    async def _keep(self, session: McpSession) -> None:
        self._session, self._since = session, monotonic()
        self._settle()
        log.info("mcp.connected", server=self.server.name, tools=len(self.tools), missing=self._missing())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.listen())
                while True:
                    await session.stale()
                    async with asyncio.timeout(self._answer_timeout):
                        self._take(await session.list_tools())
                    self._settle()
        finally:
            self._session = None
            self._settle()

    def _was_steady(self) -> bool:
        return self._since is not None and monotonic() - self._since > _STEADY

    def _take(self, tools: Sequence[types.Tool]) -> None:
        wanted = self.server.tools
        offered = [tool_of(self.server, tool, self.call) for tool in tools if wanted is None or tool.name in wanted]
        self.tools = {tool.spec.name: tool for tool in offered}

    def _missing(self) -> list[str]:
        return sorted(set(self.server.tools or ()) - {tool.name for tool in self.tools.values()})

    def _settle(self) -> None:
        self.tried = True
        MCP_CONNECTED.labels(self.server.name).set(self.connected)
        self._changed.notify()

    def _report(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        if self._since is None:
            log.warning("mcp.failed", server=self.server.name, reason=reason)
        else:
            log.warning("mcp.lost", server=self.server.name, reason=reason)

    async def _rest(self, failures: int) -> None:
        """The first failure is forgiven: a server that was there a moment ago is likely to be there again."""
        if failures < 2:
            return
        self._pausing = True
        self._settle()
        pause = min(_LONGEST_PAUSE, self._pause * 2.0 ** (failures - 2))
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311, no secret depends on it
        self._pausing = False

    # --- calls -------------------------------------------------------------------------------------------------------

    async def call(self, tool: McpTool, arguments: Mapping[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        """Raises ToolError for a call that the server refused, ToolUnavailable where there is no server."""
        session = await self._reach()
        try:
            return await session.call(tool.name, arguments, progress)
        except MCPError as error:
            if error.code == types.INVALID_PARAMS:
                raise ToolError(error.message) from error
            happened = "went away" if error.code == types.CONNECTION_CLOSED else f"failed (error {error.code})"
            words = f"The MCP server {self.server.name} {happened} in the middle of the call."
            if not repeatable(tool.spec):
                words += " What the call had done by then is not known."
            raise ToolUnavailable(words) from error

    async def _reach(self) -> McpSession:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._changed.until(lambda: self.connected or self._pausing)
        if self._session is None or self._session.doubted:
            raise ToolUnavailable(
                f"The MCP server {self.server.name} cannot be reached now. It is tried again; do without it meanwhile."
            )
        return self._session

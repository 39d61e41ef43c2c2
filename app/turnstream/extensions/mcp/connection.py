"""The connection to one MCP server. It reconnects after a failure; the tools that it listed last remain available."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NoReturn, TypeVar

import structlog
from mcp import MCPError, types
from mcp.shared.dispatcher import ProgressFnT

from turnstream.extensions.mcp.app_tools import is_for
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.owner_calls import OwnerCalls
from turnstream.extensions.mcp.session import REFUSALS, McpSession, OfferKind, OfferList, session_with
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.extensions.mcp.tasks import McpTask, TaskRequest, TaskState
from turnstream.extensions.mcp.tool import McpTool, tool_of
from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.text import storable
from turnstream.libraries.extension_metrics import MCP_CONNECTED
from turnstream.tools.policy import repeatable
from turnstream.tools.schemas import SchemaRoom
from turnstream.tools.tool import Outcome, ToolContext, ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STEADY = 10.0  # seconds; a connection that lasted longer is renewed without a pause
_LONGEST_PAUSE = 60.0
MAX_TOOLS = 500  # tools of one server
_NAMED, _NAMED_CHARS = 10, 100  # maximum names of left-out tools in the log, and the most characters of each name
_MAX_REASON = 1000  # characters of an error that the server may have written
# Errors inside a client leave its task groups as an ExceptionGroup.
_FAILURES = (OSError, ValueError, MCPError, ExceptionGroup)


def _shortened(reason: str) -> str:
    """Truncates a text that the server sent, and ends it with a full stop."""
    reason = storable(reason[:_MAX_REASON]).strip()
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


class Changes:
    """Wakes all tasks that wait for a change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._next.wait()


@dataclass(frozen=True, slots=True)
class McpTiming:
    """Times in seconds. A server has `start_timeout` to start, and `answer_timeout` to list its tools again. After two
    consecutive failures, a pause precedes each further attempt to connect: `pause` at first, then twice as long each
    time. A `pause` also separates two reads of the list of tools. The start of this program, and a call, wait up to
    `connect_timeout` for an attempt that is running. A list of tools is cached for at least `shortest_ttl`, and a task
    is polled after at least `shortest_poll`.
    """

    connect_timeout: float = 5.0
    start_timeout: float = 30.0
    answer_timeout: float = 10.0
    pause: float = 1.0
    shortest_ttl: float = 10.0
    shortest_poll: float = 1.0


class McpConnection:
    """One connection. `run` connects, and reconnects after a failure. Meanwhile the `tools` that were listed last
    remain available.
    """

    def __init__(self, server: McpServer, changes: Changes, timing: McpTiming) -> None:
        self.server = server
        self.tools: Mapping[str, McpTool] = {}
        self.tried = False
        self.failure = ""
        self.sign_ins: SignIns | None = None
        self._changes = changes
        self._timing = timing
        self._session: McpSession | None = None
        self._connected_at: float | None = None
        self._pausing = False
        if not server.owner_tools:
            MCP_CONNECTED.labels(server.name).set(0)

    @property
    def connected(self) -> bool:
        return self._session is not None and not self._session.doubted

    # --- staying connected -------------------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Connects and reconnects until it is cancelled. Must run in a single task, because only the task that entered
        a client may leave it.
        """
        failures = 0
        while True:
            self._connected_at = None
            try:
                async with asyncio.timeout(self._timing.start_timeout) as limit, session_with(self.server) as session:
                    await self._list_tools(session)
                    limit.reschedule(None)
                    await self._keep(session)
            except _FAILURES as error:
                self._log_failure(error)
                task = asyncio.current_task()
                # a task group of the SDK reports the other error instead of the cancellation
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError from None
            failures = 0 if self._was_steady() else failures + 1
            if failures >= 2:  # no pause after the first failure: the server may have restarted
                self._pausing = True
                self._publish()
                await asyncio.sleep(jittered(backoff(failures - 1, self._timing.pause, _LONGEST_PAUSE)))
                self._pausing = False

    async def _keep(self, session: McpSession) -> None:
        """Makes the session available to calls until the session ends."""
        self._session, self._connected_at = session, monotonic()
        self._publish()
        missing = sorted(set(self.server.tools or ()) - {tool.name for tool in self.tools.values()})
        log.info("mcp.connected", server=self.server.name, tools=len(self.tools), missing=missing)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.listen())
                while True:
                    await session.wait_for_refresh(self._timing.shortest_ttl)
                    async with asyncio.timeout(self._timing.answer_timeout):
                        await self._list_tools(session)
                    self._publish()
                    # a server may notify changes without end, so its tools are not listed more often
                    await asyncio.sleep(self._timing.pause)
        finally:
            self._session = None
            self._publish()

    async def _list_tools(self, session: McpSession) -> None:
        tools = await self.listed(session)
        if changed := sorted(
            name for name in tools.keys() & self.tools.keys() if tools[name].spec != self.tools[name].spec
        ):
            # The texts of a server become part of the prompt, so the log shows changes that nobody has reviewed.
            log.warning("mcp.tools_changed", server=self.server.name, tools=changed[:_NAMED], number=len(changed))
        self.tools = tools

    async def listed(self, session: McpSession) -> Mapping[str, McpTool]:
        """Returns the tools that the server has at present, by their names in this program. Raises ValueError and the
        exceptions of the session.
        """
        names, room = self.server.tools, SchemaRoom()
        tools: dict[str, McpTool] = {}
        left_out: dict[str, str] = {}
        async for page in session.pages():
            for listed in page:
                is_offered = is_for(listed, "model") or is_for(listed, "app")
                if (names is not None and listed.name not in names) or not is_offered:
                    continue
                try:
                    tool = tool_of(self.server, listed, self.call, room, self.task)
                    if len(tools) == MAX_TOOLS:
                        raise ValueError(f"the server has more than {MAX_TOOLS} tools")
                except ValueError as problem:
                    if len(left_out) < _NAMED:
                        left_out[listed.name[:_NAMED_CHARS]] = str(problem)
                else:
                    tools[tool.spec.name] = tool
        if left_out:
            log.warning("mcp.tools_left_out", server=self.server.name, tools=left_out)
        return tools

    def _was_steady(self) -> bool:
        return self._connected_at is not None and monotonic() - self._connected_at > _STEADY

    def _publish(self) -> None:
        self.tried = True
        MCP_CONNECTED.labels(self.server.name).set(self.connected)
        self._changes.notify()

    def _log_failure(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.failure = reason = f"{type(error).__name__}: {error}".removesuffix(": ")[:_MAX_REASON]
        if self._connected_at is None:
            log.warning("mcp.failed", server=self.server.name, reason=reason)
        else:
            log.warning("mcp.lost", server=self.server.name, reason=reason)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def call(
        self, tool: McpTool, arguments: Mapping[str, Any], progress: ProgressFnT, context: ToolContext
    ) -> types.CallToolResult | Outcome:
        """Calls a tool. Raises ToolError if the server refuses the call or sends an invalid answer, and ToolUnavailable
        if there is no connection or the call fails.
        """
        try:
            if self.server.per_owner:
                return await self.owner_calls().call(tool.name, arguments, progress, context)
            return await (await self._connected_session()).call(tool.name, arguments, progress)
        except MCPError as error:
            reason = _shortened(error.message)
            log.warning("mcp.call_failed", tool=tool.spec.name, code=error.code, error=reason)
            if error.code in REFUSALS:
                raise ToolError(f"The MCP server {self.server.name} refused the call: {reason}") from error
            if error.code == types.CONNECTION_CLOSED:
                text = f"The MCP server {self.server.name} went away in the middle of the call."
            else:
                text = f"The MCP server {self.server.name} failed in the middle of the call: {reason}"
            if not repeatable(tool.spec):
                text += " The effects of the call are unknown."
            raise ToolUnavailable(text) from error
        except (ValueError, RuntimeError) as error:  # raised by the SDK
            reason = _shortened(f"{type(error).__name__}: {error}")
            log.warning("mcp.call_failed", tool=tool.spec.name, code=None, error=reason)
            text = f"The MCP server {self.server.name} sent an answer that its protocol does not allow."
            if not repeatable(tool.spec):
                text += " What the call has done is not known."
            raise ToolError(text) from error

    async def use_for(
        self, context: ToolContext, use: Callable[[McpSession], Awaitable[T]], seconds: float
    ) -> T | Outcome:
        """Returns the result of `use`, which gets a session with the owner's token. If the owner must sign in, returns
        an outcome that asks for the sign-in. Raises ToolUnavailable.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.owner_calls().use(context, use)
        except (MCPError, ValueError, RuntimeError, TimeoutError) as error:
            reason = _shortened(f"{type(error).__name__}: {error}")
            log.warning("mcp.failed", server=self.server.name, reason=reason)
            raise ToolUnavailable(f"The MCP server {self.server.name} does not list its tools now.") from error

    async def use_as(self, owner: str, use: Callable[[McpSession], Awaitable[T]]) -> T:
        """Returns the result of `use`, which gets a session for the owner, outside of a turn. Raises SignInNeeded,
        ToolUnavailable, and MCPError if the server answers with an error.
        """
        try:
            async with asyncio.timeout(self._timing.answer_timeout):
                if self.server.per_owner:
                    return await self.owner_calls().with_token(owner, use)
                return await use(await self._connected_session())
        except MCPError as error:
            if error.code != types.CONNECTION_CLOSED:
                raise
            reason = _shortened(error.message)
        except (ValueError, RuntimeError, TimeoutError) as error:
            reason = _shortened(f"{type(error).__name__}: {error}")
        log.warning("mcp.offer_failed", server=self.server.name, reason=reason)
        raise ToolUnavailable(f"The MCP server {self.server.name} does not answer as it should: {reason}")

    async def offers(self, owner: str, kind: OfferKind) -> OfferList:
        """Returns a list that the server has for the owner. Raises the exceptions of `use_as`."""
        return await self.use_as(owner, lambda session: session.offers(kind, self._timing.shortest_ttl))

    async def send_task(self, owner: str, request: TaskRequest) -> TaskState | types.EmptyResult:
        """Sends a request about a task. Raises MCPError, and ToolUnavailable if there is no connection."""
        if self.server.per_owner:
            return await self.owner_calls().send_task(owner, request)
        return await (await self._connected_session()).send_task(request)

    def task(self, id: str, owner: str) -> McpTask:
        send = partial(self.send_task, owner)
        return McpTask(id, self.server.name, send, self.server.elicitation, self._timing.shortest_poll)

    def owner_calls(self) -> OwnerCalls:
        if self.sign_ins is None:
            raise ToolUnavailable(f"Nobody can sign in to the MCP server {self.server.name} here: no server runs.")
        return OwnerCalls(self.server, self.sign_ins)

    async def _connected_session(self) -> McpSession:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.connect_timeout):
                await self._changes.until(lambda: self.connected or self._pausing)
        session = self._session
        if session is None or session.doubted:
            raise ToolUnavailable(
                f"The MCP server {self.server.name} cannot be reached now. It is tried again; do without it meanwhile."
            )
        return session

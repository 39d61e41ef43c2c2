"""The MCP servers of a replica, as one source of tools. Each reconnects after a failure; its tools stay listed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NoReturn, Self, TypeVar

import structlog
from mcp import MCPError, types
from mcp.shared.dispatcher import ProgressFnT

from turnstream.extensions.mcp.app_tools import is_for
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.owner_calls import OwnerCalls
from turnstream.extensions.mcp.owner_lists import OwnerLists
from turnstream.extensions.mcp.session import REFUSALS, McpSession, OfferKind, OfferList, session_with
from turnstream.extensions.mcp.sign_ins import SignIns
from turnstream.extensions.mcp.tasks import McpTask, TaskRequest, TaskState
from turnstream.extensions.mcp.tool import McpTool, tool_of
from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.text import storable
from turnstream.libraries.extension_metrics import MCP_CONNECTED
from turnstream.tools.policy import repeatable
from turnstream.tools.schemas import SchemaRoom
from turnstream.tools.tool import Outcome, Tool, ToolContext, ToolError, ToolUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STEADY = 10.0  # a connection that lasted for this many seconds is renewed at once
_LONGEST_PAUSE = 60.0
MAX_TOOLS = 500  # of one server
_NAMED, _NAMED_CHARS = 10, 100  # of omitted tools, in the log
_MAX_REASON = 1000  # characters of an error, perhaps with the server's text
# Errors inside a client leave its task groups as an ExceptionGroup.
_FAILURES = (OSError, ValueError, MCPError, ExceptionGroup)


def _shortened(reason: str) -> str:
    """A sentence of a server, shortened."""
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
    """In seconds. A server has `start_timeout` to start, and `answer_timeout` to list its tools again. After two
    failures in a row there is a pause before each further try: first `pause`, doubled each time. Between two lists of
    tools there is a `pause`, too. The start of this program, and a call, wait up to `connect_timeout` for a running
    connection attempt. A list of tools is cached for at least `shortest_ttl`, and a task is polled after at least
    `shortest_poll`.
    """

    connect_timeout: float = 5.0
    start_timeout: float = 30.0
    answer_timeout: float = 10.0
    pause: float = 1.0
    shortest_ttl: float = 10.0
    shortest_poll: float = 1.0


class McpConnection:
    """`run` connects, and reconnects after a failure; meanwhile the last listed `tools` stay."""

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
        """Runs in one task: the task that entered a client must leave it."""
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
                if task is not None and task.cancelling():  # a task group of the SDK reports only the other error
                    raise asyncio.CancelledError from None
            failures = 0 if self._was_steady() else failures + 1
            if failures >= 2:  # no pause after the first failure: the server is probably back
                self._pausing = True
                self._publish()
                await asyncio.sleep(jittered(backoff(failures - 1, self._timing.pause, _LONGEST_PAUSE)))
                self._pausing = False

    async def _keep(self, session: McpSession) -> None:
        """Offers the session to calls until it ends."""
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
                    await asyncio.sleep(self._timing.pause)  # a server may send notifications of changes all the time
        finally:
            self._session = None
            self._publish()

    async def _list_tools(self, session: McpSession) -> None:
        tools = await self.listed(session)
        if changed := sorted(
            name for name in tools.keys() & self.tools.keys() if tools[name].spec != self.tools[name].spec
        ):
            # Texts of a server are part of the prompt: an unreviewed change should be visible.
            log.warning("mcp.tools_changed", server=self.server.name, tools=changed[:_NAMED], number=len(changed))
        self.tools = tools

    async def listed(self, session: McpSession) -> Mapping[str, McpTool]:
        """The present tools of the server, by their names here. Raises the session's exceptions, and ValueError."""
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
        """Raises ToolError if the server refused the call, ToolUnavailable without a server."""
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
                text += " What the call had done by then is not known."
            raise ToolUnavailable(text) from error
        except (ValueError, RuntimeError) as error:  # of the SDK
            reason = _shortened(f"{type(error).__name__}: {error}")
            log.warning("mcp.call_failed", tool=tool.spec.name, code=None, error=reason)
            text = f"The MCP server {self.server.name} sent an answer that its protocol does not allow."
            if not repeatable(tool.spec):
                text += " What the call has done is not known."
            raise ToolError(text) from error

    async def use_for(
        self, context: ToolContext, use: Callable[[McpSession], Awaitable[T]], seconds: float
    ) -> T | Outcome:
        """Uses a session with the owner's token. The outcome may ask for a sign-in. Raises ToolUnavailable."""
        try:
            async with asyncio.timeout(seconds):
                return await self.owner_calls().use(context, use)
        except (MCPError, ValueError, RuntimeError, TimeoutError) as error:
            reason = _shortened(f"{type(error).__name__}: {error}")
            log.warning("mcp.failed", server=self.server.name, reason=reason)
            raise ToolUnavailable(f"The MCP server {self.server.name} does not list its tools now.") from error

    async def use_as(self, owner: str, use: Callable[[McpSession], Awaitable[T]]) -> T:
        """Uses a session for an owner, outside of a turn. Raises SignInNeeded, ToolUnavailable, and MCPError for an
        error of the server.
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
        """Returns a list of the server for an owner. Raises as `use_as` does."""
        return await self.use_as(owner, lambda session: session.offers(kind, self._timing.shortest_ttl))

    async def send_task(self, owner: str, request: TaskRequest) -> TaskState | types.EmptyResult:
        """Sends a request about a task. Raises MCPError, and ToolUnavailable without a connection."""
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


class McpServers:
    """Connects on entry, and waits up to the `connect_timeout` until every server was tried once. Raises ValueError if
    the tools of two servers would have the same names.
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
        """Waits until each server was tried."""
        await self.changes.until(lambda: all(each.tried for each in self._kept_open))
        return {
            f"MCP {each.server.name}": "" if each.connected else each.failure or "no answer" for each in self._kept_open
        }

    def tools(self) -> Mapping[str, Tool]:
        """The last listed tools of each server, connected or not."""
        lists: list[Mapping[str, Tool]] = [each.tools for each in self._kept_open]
        lists += [each.tools for each in self._lists]
        return {name: tool for tools in lists for name, tool in tools.items()}

    @property
    def connections(self) -> Sequence[McpConnection]:
        return list(self._connections.values())

    @property
    def with_sign_in(self) -> Mapping[str, McpServer]:
        """The servers with sign-ins of owners, by name."""
        return {each.server.name: each.server for each in self._connections.values() if each.server.oauth}

    def use(self, sign_ins: SignIns) -> None:
        """Called when the server runs: from now on owners can sign in."""
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

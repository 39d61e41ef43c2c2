"""One connection to an MCP server, from its handshake to its end, as a child process or over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import version
from math import inf
from typing import Any

import structlog
from mcp import MCPError, types
from mcp.client import (
    Client,
    ClientRequestContext,
    IncomingMessage,
)
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import UrlElicitationRequiredError

from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.questions import question_of
from turnstream.extensions.mcp.tasks import TaskExtension, TaskRequest, TaskState
from turnstream.extensions.mcp.transport import TOO_LONG, Bearer, transport
from turnstream.tools.tool import AskPerson, ToolError

log = structlog.get_logger(__name__)

_MAX_PAGES = 100
_LISTEN_AGAIN = 5.0  # seconds
_MAX_ROUNDS = 5  # of pages that a call requires, one after another

# Errors that say of a call that it was not made.
REFUSALS = frozenset(
    {
        types.INVALID_PARAMS,
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        types.URL_ELICITATION_REQUIRED,
    }
)

# The way to ask the person about the call that is being made. A request of the server is handled in the context of the
# call, unless the server is one over stdio from before 2026-07-28.
asking: ContextVar[AskPerson | None] = ContextVar("asking", default=None)


class McpSession:
    """The session of one connection. Its methods may be called from any task.

    `doubted`: a call failed as calls do when the server is gone; listing the tools again shows whether it is.
    """

    def __init__(self, server: McpServer) -> None:
        self.client: Client
        self._server = server
        self._asking: list[AskPerson | None] = []
        self.doubted = False
        self._ended = False
        self._calls = 0
        self.ttl: float | None = None  # seconds for which the server lets its list of tools be kept
        self._refresh = asyncio.Event()

    def end(self) -> None:
        self._ended = self.doubted = True
        self._refresh.set()

    async def receive(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._refresh.set()

    async def wait_for_refresh(self, shortest: float) -> None:
        """Returns when the tools should be listed again, by the age of the list after `shortest` seconds or later.
        Raises ConnectionError when the connection has ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self.ttl is None else max(self.ttl, shortest)):
                await self._refresh.wait()
        self._refresh.clear()
        if self._ended:
            raise ConnectionResetError("the server ended the connection")

    async def pages(self) -> AsyncIterator[list[types.Tool]]:
        """The tools of the server, page by page. Raises ValueError for a list of too many pages."""
        cursor: str | None = None
        self.ttl = None
        for _ in range(_MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            if page.ttl_ms:  # without one the list stays until the server notifies a change
                self.ttl = min(self.ttl or inf, page.ttl_ms / 1000)
            yield page.tools
            cursor = page.next_cursor
            if cursor is None:
                self.doubted = False
                return
        raise ValueError(f"the list of tools has more than {_MAX_PAGES} pages")

    async def listen(self) -> None:
        """Keeps a subscription open: some servers announce changes of their tools in no other way."""
        tools = self.client.server_capabilities.tools
        with suppress(ListenNotSupportedError):
            while tools is not None and tools.list_changed:
                with suppress(MCPError, SubscriptionLost):
                    async with self.client.listen(tools_list_changed=True) as changes:
                        self._refresh.set()  # for changes between the last list and the subscription
                        async for _ in changes:
                            self._refresh.set()
                self._refresh.set()
                await asyncio.sleep(_LISTEN_AGAIN)

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002, the SDK names it
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        """Asks the person for the server. If it is not known for which of several calls it asks, nobody is asked."""
        ask = asking.get()
        if ask is None and len(self._asking) > 1:
            log.warning("mcp.elicitation_unclear", server=self._server.name, calls=len(self._asking))
            return types.ElicitResult(action="cancel")
        ask = ask or next(iter(self._asking), None)
        question = question_of(params, self._server.elicitation or 0)
        if ask is None or question is None:
            return types.ElicitResult(action="decline")
        answer = await ask(question)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(
            action=answer.action, content=None if answer.content is None else dict(answer.content)
        )

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        self._calls += 1
        ask = asking.get()
        self._asking.append(ask)
        cancelled = False
        try:
            return await self._call(tool, dict(arguments), progress)
        except MCPError as error:
            if TOO_LONG in error.message:
                log.warning("mcp.too_long", server=self._server.name, error=TOO_LONG)
                raise ToolError(f"The answer of {tool} was too long to be read. Ask for less.") from error
            if error.code not in REFUSALS:
                self.doubted = True
                self._refresh.set()
            raise
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._calls -= 1
            self._asking.remove(ask)
            if cancelled and not self._calls:  # a call may have timed out: is the server only slow, or stuck?
                self._refresh.set()

    async def send_task(self, request: TaskRequest) -> TaskState | types.EmptyResult:
        """Sends a request about a task."""
        result = TaskState if request.method == "tasks/get" else types.EmptyResult
        return await self.client.session.send_request(request, result)

    async def _call(self, tool: str, arguments: dict[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        for _ in range(_MAX_ROUNDS):
            try:
                return await self.client.call_tool(tool, arguments, progress_callback=progress)
            except MCPError as error:
                # Servers of 2025-11-25 refuse a call until the person has been to a page.
                if error.code != types.URL_ELICITATION_REQUIRED or not await self._visit(error):
                    raise
        raise ToolError(f"{tool} sends the person to a page again and again.")

    async def _visit(self, error: MCPError) -> bool:
        """Sends the person to the pages that a server requires. False if they were not visited."""
        try:
            pages = UrlElicitationRequiredError.from_error(error.error).elicitations
        except ValueError:
            return False
        ask = asking.get()
        for page in pages[:_MAX_ROUNDS]:
            question = question_of(page, self._server.elicitation or 0)
            if ask is None or question is None or self._server.elicitation is None:
                return False
            answer = await ask(question)
            if answer is None or answer.action != "accept":
                return False
        return bool(pages)


@asynccontextmanager
async def session_with(server: McpServer, bearer: Bearer | None = None) -> AsyncIterator[McpSession]:
    """Must be left in the task that entered it."""
    session = McpSession(server)
    client = Client(
        transport(server, session.end, bearer),
        message_handler=session.receive,
        elicitation_callback=None if server.elicitation is None else session.elicit,
        client_info=types.Implementation(name="turnstream", version=version("turnstream")),
        cache=None,
        extensions=[TaskExtension()],
    )
    async with client as session.client:
        # The SDK checks results with Python's regular expressions, whose time has no bound; `McpTool` checks them.
        client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
        yield session


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    pass

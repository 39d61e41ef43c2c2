"""One connection to an MCP server, from its handshake to its end, as a child process or over HTTP."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import structlog
from mcp import MCPError, StdioServerParameters, stdio_client, types
from mcp.client import (
    Client,
    ClientRequestContext,
    IncomingMessage,
)
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.message import SessionMessage
from msgspec.json import encode as to_json

from app.kit.text import storable
from app.tools.declared.declarations import McpServer
from app.tools.schemas import InputSchema
from app.tools.tool import AskPerson, PersonQuestion

log = structlog.get_logger(__name__)

_MAX_PAGES = 100
_LISTEN_AGAIN = 5.0  # seconds
_TIMEOUT = httpx2.Timeout(30, read=None)  # no limit for reading: the policy of a tool limits its calls
_GOODBYE = httpx2.Timeout(2)


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
        self._refresh = asyncio.Event()

    def end(self) -> None:
        self._ended = self.doubted = True
        self._refresh.set()

    async def receive(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._refresh.set()

    async def wait_for_refresh(self) -> None:
        """Returns when the tools should be listed again. Raises ConnectionError when the connection has ended."""
        await self._refresh.wait()
        self._refresh.clear()
        if self._ended:
            raise ConnectionResetError("the server ended the connection")

    async def list_tools(self) -> list[types.Tool]:
        page = await self.client.list_tools()
        tools = page.tools
        for _ in range(_MAX_PAGES):
            if page.next_cursor is None:
                break
            page = await self.client.list_tools(cursor=page.next_cursor)
            tools += page.tools
        self.doubted = False
        return tools

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
        """Asks the person for the server. Where it is not known for which of several calls it asks, nobody is asked."""
        ask = asking.get()
        if ask is None and len(self._asking) > 1:
            log.warning("mcp.elicitation_unclear", server=self._server.name, calls=len(self._asking))
            return types.ElicitResult(action="cancel")
        ask = ask or next(iter(self._asking), None)
        question = _question_of(params, self._server.elicitation or 0)
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
            return await self.client.call_tool(tool, dict(arguments), progress_callback=progress)
        except MCPError as error:
            if error.code != types.INVALID_PARAMS:
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


def _question_of(sent: types.ElicitRequestParams, seconds: float) -> PersonQuestion | None:
    """None for a schema that is not valid, or a URL that no person should open."""
    message = storable(sent.message)
    if isinstance(sent, types.ElicitRequestURLParams):
        is_web = urlsplit(sent.url).scheme in {"http", "https"}
        return PersonQuestion(message, seconds, url=storable(sent.url)) if is_web else None
    try:
        schema = InputSchema.checked(storable(to_json(sent.requested_schema).decode()))
    except ValueError:
        return None
    return PersonQuestion(message, seconds, schema=schema.text)


@asynccontextmanager
async def session_with(server: McpServer) -> AsyncIterator[McpSession]:
    """Must be left in the task that entered it."""
    session = McpSession(server)
    client = Client(
        _transport(server, session.end),
        message_handler=session.receive,
        elicitation_callback=None if server.elicitation is None else session.elicit,
        client_info=types.Implementation(name="turnstream", version=version("turnstream")),
        cache=None,
    )
    async with client as session.client:
        yield session


@asynccontextmanager
async def _transport(server: McpServer, ended: Callable[[], None]) -> AsyncIterator[TransportStreams]:
    if server.url is not None:
        streams = _over_http(server.url, dict(server.headers))
    else:
        # The process gets a group of its own. It ends when its standard input does, or is killed.
        command, arguments = server.command or "", list(server.args)
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(server.env), cwd=server.cwd)
        streams = stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)
    async with streams as (read, write):
        yield _WatchedStream(read, ended), write


@asynccontextmanager
async def _over_http(url: str, headers: dict[str, str]) -> AsyncIterator[TransportStreams]:
    async def limit_goodbye(request: httpx2.Request) -> None:
        """The DELETE at the end of a session may go to a server that no longer answers."""
        if request.method == "DELETE":
            request.extensions["timeout"] = _GOODBYE.as_dict()

    async with (
        httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT, event_hooks={"request": [limit_goodbye]}) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


class _WatchedStream:
    """A read stream that reports its end: the SDK's client notices the end only when it is used again."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """The SDK's client handles a message in this context, where the stream has one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, traceback)

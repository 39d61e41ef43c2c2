"""One connection to an MCP server, from its handshake to its end. The server is a child process, or is reached over
HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from time import monotonic
from typing import Any, Literal

import structlog
from mcp import MCPError, types
from mcp.client import (
    Client,
    ClientRequestContext,
    IncomingMessage,
)
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    PromptsListChanged,
    ResourcesListChanged,
    SubscriptionLost,
)
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import UrlElicitationRequiredError

from turnstream.extensions.mcp.app_tools import AppExtension
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.questions import question_of
from turnstream.extensions.mcp.tasks import TaskExtension, TaskRequest, TaskState
from turnstream.extensions.mcp.transport import TOO_LONG, Bearer, transport
from turnstream.tools.tool import AskPerson, ToolError

log = structlog.get_logger(__name__)

_MAX_PAGES = 100
_LISTEN_AGAIN = 5.0  # seconds between two attempts to subscribe
_OFFER_TTL = 300.0  # seconds for which prompts and resources are cached if the server sends no TTL and no notifications
_MAX_ROUNDS = 5  # limit for consecutive pages that a person must visit for one call

# Errors which show that a call was not made.
REFUSALS = frozenset(
    {
        types.INVALID_PARAMS,
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        types.URL_ELICITATION_REQUIRED,
    }
)

# The function that asks the person of the current call. A request that the server sends is handled in the context of
# the call, except for stdio servers with a protocol older than 2026-07-28.
asking: ContextVar[AskPerson | None] = ContextVar("asking", default=None)


OfferKind = Literal["prompts", "resources", "templates"]
OfferItem = types.Prompt | types.Resource | types.ResourceTemplate


@dataclass(frozen=True, slots=True)
class OfferList:
    """A list of prompts, of resources, or of templates for resources. `until` is a time of the monotonic clock."""

    items: Sequence[OfferItem] = ()
    until: float = inf


class McpSession:
    """The session of one connection. Its methods may be called from any task.

    `doubted` is set when a call fails as if the server had exited. The next list of tools then shows whether the server
    is alive.
    """

    def __init__(self, server: McpServer) -> None:
        self.client: Client
        self._server = server
        self._asking: list[AskPerson | None] = []
        self.doubted = False
        self._ended = False
        self._calls = 0
        self.ttl: float | None = None  # seconds for which the server allows clients to cache its list of tools
        self._refresh = asyncio.Event()
        self._offers: dict[OfferKind, OfferList] = {}

    def end(self) -> None:
        self._ended = self.doubted = True
        self._refresh.set()

    async def receive(self, message: IncomingMessage) -> None:
        match message:
            case types.ToolListChangedNotification():
                self._refresh.set()
            case types.PromptListChangedNotification():
                self._forget("prompts")
            case types.ResourceListChangedNotification():
                self._forget("resources", "templates")
            case _:
                pass

    def _forget(self, *kinds: OfferKind) -> None:
        """Drops cached lists. Creates a new dictionary, because a read that is in progress stores its list in the old
        dictionary.
        """
        self._offers = {kind: kept for kind, kept in self._offers.items() if kind not in kinds}

    async def wait_for_refresh(self, shortest: float) -> None:
        """Waits until the tools should be listed again: after a notification, or when the TTL has passed, but not
        before `shortest` seconds. Raises ConnectionError if the connection has ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self.ttl is None else max(self.ttl, shortest)):
                await self._refresh.wait()
        self._refresh.clear()
        if self._ended:
            raise ConnectionResetError("the server ended the connection")

    async def pages(self) -> AsyncIterator[list[types.Tool]]:
        """Yields the tools of the server, page by page. Raises ValueError if there are too many pages."""
        cursor: str | None = None
        self.ttl = None
        capabilities = self.client.server_capabilities
        if capabilities.tools is None and (capabilities.prompts or capabilities.resources):
            return  # a server without tools
        for _ in range(_MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            if page.ttl_ms:  # without a TTL, the list is valid until the server notifies a change
                self.ttl = min(self.ttl or inf, page.ttl_ms / 1000)
            yield page.tools
            cursor = page.next_cursor
            if cursor is None:
                self.doubted = False
                return
        raise ValueError(f"the list of tools has more than {_MAX_PAGES} pages")

    async def offers(self, kind: OfferKind, shortest: float) -> OfferList:
        """Returns a list of the server. It is cached for its TTL, but for at least `shortest` seconds, or until the
        server notifies a change. Raises MCPError, and ValueError if the list has too many pages.
        """
        kept = self._offers.get(kind)
        if kept is None or kept.until <= monotonic():
            offers = self._offers
            with self._unasked():
                offers[kind] = kept = await self._list(kind, shortest)
        return kept

    async def _list(self, kind: OfferKind, shortest: float) -> OfferList:
        capabilities = self.client.server_capabilities
        capability = capabilities.prompts if kind == "prompts" else capabilities.resources
        if capability is None:
            return OfferList()
        items: list[OfferItem] = []
        ttl = inf if capability.list_changed else _OFFER_TTL
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._page(kind, cursor)
            if page.ttl_ms:
                ttl = min(ttl, page.ttl_ms / 1000)
            match page:
                case types.ListPromptsResult():
                    items += page.prompts
                case types.ListResourcesResult():
                    items += page.resources
                case _:
                    items += page.resource_templates
            cursor = page.next_cursor
            if cursor is None:
                return OfferList(items, monotonic() + max(ttl, shortest))
        raise ValueError(f"the list of {kind} has more than {_MAX_PAGES} pages")

    async def _page(
        self, kind: OfferKind, cursor: str | None
    ) -> types.ListPromptsResult | types.ListResourcesResult | types.ListResourceTemplatesResult:
        if kind == "prompts":
            return await self.client.list_prompts(cursor=cursor)
        if kind == "resources":
            return await self.client.list_resources(cursor=cursor)
        try:
            return await self.client.list_resource_templates(cursor=cursor)
        except MCPError as error:
            if error.code != types.METHOD_NOT_FOUND:
                raise
            return types.ListResourceTemplatesResult(resource_templates=[])

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> types.GetPromptResult:
        with self._unasked():
            return await self.client.get_prompt(name, dict(arguments))

    async def completion(self, name: str, argument: str, value: str, given: Mapping[str, str]) -> types.Completion:
        """Returns the values that the server proposes for an argument of a prompt; none if the server has no
        completions.
        """
        if self.client.server_capabilities.completions is None:
            return types.Completion(values=[])
        with self._unasked():
            reference, begun = types.PromptReference(name=name), {"name": argument, "value": value}
            return (await self.client.complete(reference, begun, dict(given))).completion

    async def resource(self, uri: str) -> types.ReadResourceResult:
        with self._unasked():
            return await self.client.read_resource(uri)

    @contextmanager
    def _unasked(self) -> Iterator[None]:
        """Encloses requests outside of a turn. If the server asks a question during such a request, nobody answers it,
        in particular not the person of another call.
        """
        self._asking.append(None)
        try:
            yield
        except asyncio.CancelledError:
            self._refresh.set()  # the request may have timed out, because the server is slow or stuck
            raise
        finally:
            self._asking.remove(None)

    async def listen(self) -> None:
        """Keeps a subscription open, because some servers notify changes of their lists only to subscribers."""
        capabilities = self.client.server_capabilities
        tools, prompts, resources = (
            bool(each is not None and each.list_changed)
            for each in (capabilities.tools, capabilities.prompts, capabilities.resources)
        )
        with suppress(ListenNotSupportedError):
            while tools or prompts or resources:
                with suppress(MCPError, SubscriptionLost):
                    async with self.client.listen(
                        tools_list_changed=tools, prompts_list_changed=prompts, resources_list_changed=resources
                    ) as changes:
                        self._refresh.set()  # the tools may have changed between the last list and the subscription
                        self._forget("prompts", "resources", "templates")
                        async for change in changes:
                            match change:
                                case PromptsListChanged():
                                    self._forget("prompts")
                                case ResourcesListChanged():
                                    self._forget("resources", "templates")
                                case _:
                                    self._refresh.set()
                self._refresh.set()
                self._forget("prompts", "resources", "templates")
                await asyncio.sleep(_LISTEN_AGAIN)

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002, the SDK names it
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        """Asks the person a question that the server sends. If it is unclear to which call the question belongs, no
        person is asked.
        """
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
            if cancelled and not self._calls:  # the call may have timed out, because the server is slow or stuck
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
                # Servers with the protocol 2025-11-25 refuse a call until the person has visited a page.
                if error.code != types.URL_ELICITATION_REQUIRED or not await self._visit(error):
                    raise
        raise ToolError(f"{tool} sends the person to a page again and again.")

    async def _visit(self, error: MCPError) -> bool:
        """Sends the person to the pages that a server requires. Returns whether the person has visited all pages."""
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
    """Opens a session with the server. The task that enters the context must also leave it."""
    session = McpSession(server)
    client = Client(
        transport(server, session.end, bearer),
        message_handler=session.receive,
        elicitation_callback=None if server.elicitation is None else session.elicit,
        client_info=types.Implementation(name="turnstream", version=version("turnstream")),
        cache=None,
        extensions=[TaskExtension(), AppExtension()],
    )
    async with client as session.client:
        # The SDK checks results with Python's regular expressions, whose run time is unlimited, so `McpTool` checks the
        # results instead.
        client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
        yield session


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    pass

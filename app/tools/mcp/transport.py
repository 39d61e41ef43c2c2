"""How an MCP server is reached: as a process of ours, or at an address."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Self

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from app.tools.declared.declarations import McpServer

# How long a call may take is the toolset's to say.
_TIMEOUT = httpx2.Timeout(30, read=None)
_GOODBYE = httpx2.Timeout(2)


class Watched:
    """A transport's read stream that tells when it ends: the client keeps that to itself until it is used again."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """Where the stream has one, the client runs what a message causes in it."""
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


@asynccontextmanager
async def transport_to(server: McpServer, ended: Callable[[], None]) -> AsyncIterator[TransportStreams]:
    """A process gets a group of its own, ends when its standard input does, and is killed if it does not end."""
    async with _streams(server) as (read, write):
        yield Watched(read, ended), write


def _streams(server: McpServer) -> AbstractAsyncContextManager[TransportStreams]:
    if server.url is not None:
        return _over_http(server.url, dict(server.headers))
    command, arguments = server.command or "", list(server.args)
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(server.env), cwd=server.cwd)
    return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)


@asynccontextmanager
async def _over_http(url: str, headers: dict[str, str]) -> AsyncIterator[TransportStreams]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT, event_hooks={"request": [_be_brief]}) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


async def _be_brief(request: httpx2.Request) -> None:
    """The end of a session is told to a server that may have stopped listening."""
    if request.method == "DELETE":
        request.extensions["timeout"] = _GOODBYE.as_dict()

"""The private parts of the package mcp, which only `app/turnstream/extensions/mcp/transport.py` uses."""

import ast
import asyncio
from contextlib import nullcontext
from contextvars import Context
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import types
from mcp.client import Client, _transport
from mcp.shared.message import SessionMessage

from turnstream.extensions.mcp import transport

EXTENSION = Path(transport.__file__).parent


def test_one_module_imports_private_parts() -> None:
    private = {
        path.name: name
        for path in EXTENSION.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (name := node.module or "").startswith("mcp.") and "._" in name
    }
    assert private == {"transport.py": "mcp.client._transport"}


def test_a_transport_gives_a_stream_to_read_and_one_to_write() -> None:
    read, write = get_args(_transport.TransportStreams)
    assert (read.__origin__, write.__origin__) == (_transport.ReadStream, _transport.WriteStream)
    public = {name for name in vars(_transport.ReadStream) if not name.startswith("_")}
    assert public | {"last_context"} == {name for name in vars(transport._WatchedStream) if not name.startswith("_")}


async def test_the_client_reads_the_context_of_each_message() -> None:
    """A question that a server asks belongs to the call in whose context the question arrives."""
    asked = asyncio.Event()

    class Watched(transport._WatchedStream):
        @property
        def last_context(self) -> Context | None:
            asked.set()
            return super().last_context

    sent, _ = streams = anyio.create_memory_object_stream[Any](1)
    answers, to_read = anyio.create_memory_object_stream[Any](1)
    ping = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")
    await answers.send(SessionMessage(ping))

    async def connect() -> None:
        async with Client(nullcontext((Watched(to_read, lambda: None), sent)), cache=None):
            pass

    connecting = asyncio.create_task(connect())
    await asked.wait()
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    for stream in (*streams, answers, to_read):
        await stream.aclose()

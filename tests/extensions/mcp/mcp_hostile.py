"""An MCP server that sends too much. `python -m tests.extensions.mcp.mcp_hostile` runs it over stdio, or, with a port,
over HTTP. The server speaks a protocol from before 2026-07-28.

The name of a tool describes how the server answers calls of the tool. `--list WHAT` chooses the list of tools that the
server sends. With `--finite`, no answer is endless: over stdio, a line that would be endless ends the connection
instead.
"""

import asyncio
import json
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

TOOLS = ("fine", "long", "values", "endless", "compressed", "failure")
PIECE = b"x" * 65_536
LONG = 12_000_000  # exceeds the limit for a message


def tools_of(what: str, cursor: str | None) -> dict[str, Any]:
    schema = {"type": "object"}
    listed = [{"name": name, "inputSchema": schema} for name in TOOLS]
    match what:
        case "many":
            listed += [{"name": f"tool_{number}", "inputSchema": schema} for number in range(1000)]
        case "wordy":
            listed += [{"name": "wordy", "description": "word " * 3000, "inputSchema": schema}]
        case "wide":
            properties: dict[str, Any] = {f"p{number}": {} for number in range(2000)}
            listed += [{"name": "wide", "inputSchema": {**schema, "properties": properties}}]
        case "shapeless":
            listed += [{"name": "shapeless", "inputSchema": {**schema, "properties": {"a": {"type": 5}}}}]
        case "pages":
            return {"tools": listed, "nextCursor": f"{cursor}x"}
        case "endless":
            listed += [{"name": "endless", "description": "word " * LONG, "inputSchema": schema}]
        case _:
            pass
    return {"tools": listed}


def answer_of(message: dict[str, Any], what: str) -> Iterator[bytes]:
    """Yields the JSON of an answer in pieces."""
    id, method, params = message["id"], message["method"], message.get("params") or {}
    match method:
        case "initialize":
            about = {"name": "hostile", "version": "1"}
            version = params["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
            yield json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
        case "tools/list":
            yield json.dumps({"jsonrpc": "2.0", "id": id, "result": tools_of(what, params.get("cursor"))}).encode()
        case "tools/call":
            yield from _result(id, params["name"])
        case _:
            error = {"code": -32601, "message": "unknown"}
            yield json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()


def _result(id: int, tool: str) -> Iterator[bytes]:
    # The id comes last, as in the answers of some servers.
    yield b'{"result":{"content":[{"type":"text","text":"'
    match tool:
        case "fine":
            yield b"fine"
        case "values":
            yield b'"}],"structuredContent":{"a":['
            yield b"{}," * 1_000_000
            yield b'{}]},"isError":false},"jsonrpc":"2.0","id":%d}' % id
            return
        case "endless" if "--finite" not in sys.argv:
            while True:
                yield PIECE
        case _:
            for _ in range(LONG // len(PIECE)):
                yield PIECE
    yield b'"}]},"jsonrpc":"2.0","id":%d}' % id


# --- transports ------------------------------------------------------------------------------------------------------


def serve_stdio(what: str) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            for piece in answer_of(message, what):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()


async def serve_http(port: int, what: str, events: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async for message in _requests(reader):
                await _answer(writer, message, what, events)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print("Uvicorn running", file=sys.stderr, flush=True)
    await server.serve_forever()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        yield json.loads(body) if body else {}


async def _answer(writer: asyncio.StreamWriter, message: dict[str, Any], what: str, events: bool) -> None:
    if "id" not in message:
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        return
    tool = (message.get("params") or {}).get("name")
    status = b"500 Broken" if tool == "failure" else b"200 OK"
    kind = b"text/event-stream" if events else b"application/json"
    writer.write(b"HTTP/1.1 %b\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n" % (status, kind))
    pieces = answer_of(message, what)
    if events:
        pieces = chain([b"data: "], pieces, [b"\n\n"])
    if tool == "compressed":
        writer.write(b"content-encoding: gzip\r\n")
        pieces = _compressed(pieces)
    writer.write(b"\r\n")
    for piece in pieces:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _compressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    listed = arguments[arguments.index("--list") + 1] if "--list" in arguments else ""
    if arguments and arguments[0].isdigit():
        asyncio.run(serve_http(int(arguments[0]), listed, "--events" in arguments))
    else:
        serve_stdio(listed)

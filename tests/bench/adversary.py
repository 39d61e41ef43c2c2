"""Hostile dependencies of a server: models, tools and a webhook that send too much data, or never answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bench.mcp_adversary import CALLED, PATIENCE, McpAdversary

# Models that call a tool: the name of the tool, and the arguments of the call.
_CALLS = {
    "looking": ("look", "{}"),
    "counting": ("count", "{}"),
    "arguing": ("look", '{"a": [' + "0," * 1_900_000 + "0]}"),
    **{f"mcp-{tool}": (f"mcp__{tool}", "{}") for tool in CALLED},
}
MODELS = ("endless", "chattering", "one-event", "long-event", "objects", "blocks", *_CALLS)
_START = {"id": "msg_hostile", "type": "message", "role": "assistant", "model": "hostile", "content": []}
_USAGE = {"input_tokens": 10, "output_tokens": 10}
_MEGABYTE = 1_000_000
_BLOCKS = 20_000
_TEXT = {"type": "text", "text": ""}


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def _delta(index: int, text: str) -> bytes:
    return _event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})


def _call(name: str, arguments: str) -> Iterator[bytes]:
    block = {"type": "tool_use", "id": "toolu_hostile", "name": name, "input": {}}
    yield _event("content_block_start", index=0, content_block=block)
    for start in range(0, len(arguments), 10_000):
        part = {"type": "input_json_delta", "partial_json": arguments[start : start + 10_000]}
        yield _event("content_block_delta", index=0, delta=part)
    yield _event("content_block_stop", index=0)


def _texts(model: str) -> Iterator[bytes]:
    """Yields the events of a reply's blocks."""
    if model == "blocks":
        for index in range(_BLOCKS):
            yield _event("content_block_start", index=index, content_block=_TEXT)
            yield _delta(index, "word ")
            yield _event("content_block_stop", index=index)
        return
    yield _event("content_block_start", index=0, content_block=_TEXT)
    if model == "endless":
        yield from [_delta(0, "word " * 2_000)] * (100 * _MEGABYTE // 10_000)
    elif model == "chattering":
        yield from [_delta(0, "word ") * 500] * (100 * _MEGABYTE // (500 * len(_delta(0, "word "))))
    elif model == "one-event":
        yield _delta(0, "word " * (100 * _MEGABYTE // 5))
    elif model == "long-event":  # the event has the maximum size
        yield _delta(0, "größer " * 225_000)
    elif model == "objects":  # the event has the maximum number of objects
        yield _event("surprise", all=[{"a": {}}] * 33_000)
        yield _delta(0, "Done.")
    else:
        yield _delta(0, "Done.")
    yield _event("content_block_stop", index=0)


def _reply(model: str, has_result: bool) -> Iterator[bytes]:
    yield _event("message_start", message={**_START, "stop_reason": None, "stop_sequence": None, "usage": _USAGE})
    reason = "end_turn"
    if has_result or model not in _CALLS:
        yield from _texts(model)
    else:
        reason = "tool_use"
        yield from _call(*_CALLS[model])
    yield _event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=_USAGE)
    yield _event("message_stop")


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mcp = McpAdversary()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_error(405)  # tells an MCP client that this server has no stream of notifications

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with suppress(ConnectionError):
            match self.path:
                case "/v1/messages":
                    request = json.loads(body)
                    self._answer("text/event-stream", _reply(request["model"], '"tool_result"' in body.decode()))
                case "/look":
                    self._answer("text/plain", [b"word " * (_MEGABYTE // 5)] * 50)
                case "/count":
                    self._answer("application/json", [b'{"output": [' + b"0," * 450_000 + b"0]}"])
                case "/mcp":
                    message = json.loads(body)
                    if "id" not in message:
                        self._answer("application/json", [], 202)
                        return
                    self._answer(*self.server.mcp.answer(message))
                case _:
                    self.rfile.read()  # waits until the caller closes the connection

    def _answer(self, media_type: str, pieces: Any, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def adversary(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the settings of a server that uses these models, tools and webhook."""
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        models, tools = folder / "hostile-models.toml", folder / "hostile-tools.toml"
        provider = f'[providers.hostile]\napi = "anthropic"\nkey = "key"\nbase_url = "{url}"\n'
        models.write_text(provider + "".join(f'[models.{name}]\nprovider = "hostile"\n' for name in MODELS))
        mcp = f'[mcp.mcp]\nurl = "{url}/mcp"\ntimeout = {PATIENCE}\n'
        tools.write_text(mcp + "".join(_tool(name, url) for name in ("look", "count")))
        try:
            yield {
                "TURNSTREAM_MODELS_FILE": str(models),
                "TURNSTREAM_TOOLS_FILE": str(tools),
                "TURNSTREAM_WEBHOOK_URL": f"{url}/silence",
                "TURNSTREAM_WEBHOOK_SECRET": "whsec_" + "c2VjcmV0" * 6,
            }
        finally:
            server.shutdown()


def _tool(name: str, url: str) -> str:
    schema = 'input_schema = { type = "object" }'
    return f'[http.{name}]\nurl = "{url}/{name}"\ninternal = true\nread_only = true\ndescription = "Looks."\n{schema}\n'

"""The WebSocket mode of the Responses API: the calls of a turn share a connection, and each call sends only new input.

The provider keeps the last response of a connection in memory. A call that continues this response names it and sends
only the tool results. Any other call sends its whole input over the same connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from time import monotonic
from typing import Self
from uuid import UUID

import aiohttp
import msgspec
import structlog
from msgspec import Raw, Struct

from turnstream.extensions.openai.responses.wire import ResponsesWire
from turnstream.libraries.providers.transport.failures import LOST
from turnstream.libraries.providers.transport.response import ModelResponse

log = structlog.get_logger(__name__)

Socket = aiohttp.ClientWebSocketResponse[bool]
Connect = Callable[[], Awaitable[Socket | None]]

_LONGEST_WAIT = 300.0  # seconds; if the tools of a turn run longer, the turn needs another connection
_LONGEST_USE = 55 * 60.0  # seconds; the provider closes a connection after an hour
_MOST_WAITING = 5_000  # connections of one provider; if there are more, the oldest connection is closed
# Members of a body that only the HTTP transport has.
_OF_HTTP = ("stream", "stream_options", "background")
# The failures that the provider reports if it no longer has the response, or requires another connection.
_BEGIN_AGAIN = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
_REPLY = frozenset({"function_call", "custom_tool_call", "message", "reasoning"})


class _Item(Struct):
    type: str = "message"
    role: str = "assistant"
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: Raw = Raw(b"null")

    @property
    def is_new(self) -> bool:
        return self.type in _RESULTS or (self.type == "message" and self.role != "assistant")

    def identity(self) -> tuple[object, ...] | None:
        """Returns the content of the item without its form, or None for an item that is not compared, such as a
        thought.
        """
        match self.type:
            case "function_call" | "custom_tool_call":
                return self.call_id, self.name, _json(self.arguments), self.input
            case "message":
                return (_text(self.content),)
            case _:
                return None


class _Failure(Struct):
    type: str = ""
    code: str | None = None
    error: Raw = Raw(b"null")


_item = msgspec.json.Decoder(_Item)


@dataclass(frozen=True, slots=True)
class CallBody:
    """The request of a call: its input items, and its other members."""

    members: Mapping[str, Raw]
    items: Sequence[Raw]

    @classmethod
    def of(cls, body: bytes) -> Self:
        members = msgspec.json.decode(body, type=dict[str, Raw])
        items = msgspec.json.decode(members.pop("input"), type=list[Raw])
        return cls({name: value for name, value in members.items() if name not in _OF_HTTP}, items)

    def digest(self, count: int) -> bytes:
        found = sha256()
        for item in self.items[:count]:
            found.update(b"%d:" % len(bytes(item)) + bytes(item))
        return found.digest()

    def message(self, items: Sequence[Raw] | None = None, previous: str | None = None) -> str:
        continued = {} if previous is None else {"previous_response_id": previous}
        input = self.items if items is None else items
        return msgspec.json.encode({"type": "response.create", **self.members, "input": input, **continued}).decode()


@dataclass(slots=True)
class Chain:
    """A connection, and the last response on it, which the provider has in memory. This response consists of the items
    `output`. It answered an input that had `count` items and the digest `digest`.
    """

    socket: Socket
    opened: float
    response: str | None = None
    count: int = 0
    digest: bytes = b""
    output: Sequence[Raw] = ()

    def new_items(self, body: CallBody) -> Sequence[Raw] | None:
        """Returns the items after the reply, if the input is the input of the last call, the unchanged reply, and new
        items. Otherwise returns None.
        """
        if self.response is None or len(body.items) <= self.count or body.digest(self.count) != self.digest:
            return None
        try:
            behind = [_item.decode(item) for item in body.items[self.count :]]
            output = [_item.decode(item) for item in self.output]
        except msgspec.DecodeError:  # the items come from another server, in another form
            return None
        reply = list(takewhile(lambda item: not item.is_new, behind))
        new = behind[len(reply) :]
        if not new or not all(item.is_new for item in new) or _said(reply) != _said(output):
            return None
        return body.items[self.count + len(reply) :]


def _said(items: Sequence[_Item]) -> list[tuple[object, ...]]:
    """Returns the calls and texts of a reply. Adjacent texts are joined, because they are sent back as one message."""
    found: list[tuple[object, ...]] = []
    for identity in (item.identity() for item in items if item.type in _REPLY):
        if identity is None or identity == ("",):
            continue
        if found and len(identity) == len(found[-1]) == 1:
            found[-1] = (f"{found[-1][0]}{identity[0]}",)
        else:
            found.append(identity)
    return found


def _json(text: str | None) -> object:
    try:
        return None if text is None else repr(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return text


def _text(content: Raw) -> str:
    value = msgspec.json.decode(content)
    parts = value if isinstance(value, list) else [{"text": value or ""}]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


class Sockets:
    """Keeps the connections of turns between the turns' calls. `connect` returns None if no connection is available."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._waiting: dict[UUID, tuple[Chain, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[object]] = set()

    async def open(self, turn: UUID | None) -> Chain | None:
        """Returns the kept connection of a turn, or a new connection."""
        chain = None if turn is None else self._taken(turn)
        if chain is not None and not chain.socket.closed and monotonic() - chain.opened < _LONGEST_USE:
            return chain
        if chain is not None:
            self.close(chain)
        return await self.new_chain()

    async def new_chain(self) -> Chain | None:
        socket = await self._connect()
        return None if socket is None else Chain(socket, monotonic())

    def keep(self, turn: UUID, chain: Chain) -> None:
        """Keeps the connection for the next call of the turn, while the tools of the turn run."""
        self._drop(turn)
        self._waiting[turn] = chain, asyncio.get_running_loop().call_later(_LONGEST_WAIT, self._drop, turn)
        if len(self._waiting) > _MOST_WAITING:
            self._drop(next(iter(self._waiting)))

    def close(self, chain: Chain) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(chain.socket.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        for turn in list(self._waiting):
            self._drop(turn)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _drop(self, turn: UUID) -> None:
        if chain := self._taken(turn):
            self.close(chain)

    def _taken(self, turn: UUID) -> Chain | None:
        chain, expiry = self._waiting.pop(turn, (None, None))
        if expiry is not None:
            expiry.cancel()
        return chain


class SocketCall:
    """One call over a connection. `response` reads the events of the call as server-sent events."""

    def __init__(self, sockets: Sockets, chain: Chain, body: CallBody, wire: ResponsesWire) -> None:
        self.response = ModelResponse(200, {"content-type": "text/event-stream"}, self._read)
        self.chain = chain
        self._sockets = sockets
        self._body = body
        self._wire = wire
        self._is_new = chain.response is None
        self._first = True

    async def send(self) -> None:
        new = self.chain.new_items(self._body)
        previous = None if new is None else self.chain.response
        try:
            await self.chain.socket.send_str(self._body.message(new, previous))
        except LOST:
            if self._is_new:
                raise
            await self._begin_again()

    def finish(self, turn: UUID) -> bool:
        """Keeps the connection for the next call if the reply ended with tool calls. Returns whether it was kept."""
        wire, chain = self._wire, self.chain
        if not (wire.ended and wire.called and wire.response_id is not None) or chain.socket.closed:
            return False
        chain.response, chain.output = wire.response_id, wire.output
        chain.count, chain.digest = len(self._body.items), self._body.digest(len(self._body.items))
        self._sockets.keep(turn, chain)
        return True

    async def _read(self) -> bytes:
        if self._wire.over:
            return b""
        frame = await self._frame()
        if self._first and not self._is_new and (frame is None or _begins_again(frame)):
            await self._begin_again()
            frame = await self._frame()
        self._first = False
        return b"" if frame is None else b"data: " + frame.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"

    async def _frame(self) -> bytes | None:
        """Returns the next frame, or None if the connection is closed."""
        message = await self.chain.socket.receive()
        match message.type:
            case aiohttp.WSMsgType.TEXT:
                return str(message.data).encode()
            case aiohttp.WSMsgType.BINARY:
                return bytes(message.data)
            case _:
                return None

    async def _begin_again(self) -> None:
        """Sends the whole input over a new connection, because the kept connection is closed or the provider no longer
        has its response.
        """
        log.info("socket.renewed", response=self.chain.response)
        self._sockets.close(self.chain)
        chain = await self._sockets.new_chain()
        if chain is None:
            raise aiohttp.ClientConnectionError("The provider accepts no WebSocket any more.")
        self.chain, self._is_new = chain, True
        await self.send()


def _begins_again(frame: bytes) -> bool:
    try:
        failure = msgspec.json.decode(frame, type=_Failure)
        inner = msgspec.json.decode(failure.error)
    except ValueError:  # the frame is malformed, which the parser of the answer reports
        return False
    if failure.type != "error":
        return False
    code = inner.get("code") if isinstance(inner, Mapping) else failure.code
    return code in _BEGIN_AGAIN

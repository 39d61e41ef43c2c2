"""Reads an answer to its end, in the pieces that the network delivers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from tests.extensions.openai.test_openai_wire import DONE, chunk, frame, text
from turnstream.domain.errors import ProviderError
from turnstream.extensions.openai.chat.wire import ChatWire
from turnstream.libraries.providers.transport import http
from turnstream.libraries.providers.transport.http import Adapter
from turnstream.libraries.providers.transport.response import ModelResponse
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.provider import BlockText, MessageEnded, ModelRequest, Part

STOP = chunk(finish="stop")
LOST = httpx2.ReadError("lost")


class Silence:
    """Stands for a server that sends nothing more but keeps the connection open."""


class NoClient:
    async def close(self) -> None: ...


class Canned(Adapter):
    """Returns the same response for each request."""

    def __init__(self, response: ModelResponse, wire: Wire) -> None:
        super().__init__(NoClient(), max_event_bytes=1000)
        self._response = response, wire

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        yield self._response


async def read_all(
    *pieces: bytes | Exception | Silence, kind: str = "text/event-stream"
) -> tuple[list[Part], ChatWire, int]:
    """Returns the parts, the wire after the last piece, and the number of pieces that were read."""
    read, rest = 0, iter(pieces)

    async def read_piece() -> bytes:
        nonlocal read
        piece = next(rest, b"")
        if isinstance(piece, Exception):
            raise piece
        if isinstance(piece, Silence):
            await asyncio.Event().wait()
        assert isinstance(piece, bytes)
        read += bool(piece)
        return piece

    wire = ChatWire()
    response = ModelResponse(200, {"content-type": kind}, read_piece)
    parts: list[Part] = []
    with suppress(ProviderError):
        async for batch in Canned(response, wire).stream(ModelRequest("m", ())):
            parts += batch
    return parts, wire, read


def words(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, BlockText))


async def test_data_after_the_finish_reason_is_read_and_after_the_last_event_is_not() -> None:
    parts, wire, read = await read_all(text("a"), STOP, b": nothing\n\n", text("b"), DONE, text("c"))
    assert (words(parts), wire.ended, read) == ("ab", True, 6)


@pytest.mark.parametrize("last", [[], [Silence()], [LOST], [DONE, Silence()], [DONE, LOST]])
async def test_a_stopped_answer_is_complete_whatever_follows(
    last: list[bytes | Exception | Silence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_TAIL", 0.01)
    monkeypatch.setattr(http, "_MAX_DRAIN", 0.01)
    parts, wire, _ = await read_all(text("a"), STOP, *last)
    assert wire.ended
    assert isinstance(parts[-1], MessageEnded)


async def test_a_connection_that_is_lost_before_the_reason_to_stop_is_an_error() -> None:
    with pytest.raises(httpx2.ReadError):
        await read_all(text("a"), LOST)


@pytest.mark.parametrize("before", [[text("a")], [text("a"), STOP]])
async def test_nothing_is_read_after_a_failure(before: list[bytes]) -> None:
    parts, wire, read = await read_all(*before, frame({"error": "No."}), text("b"))
    assert (words(parts), wire.failure, read) == ("a", {"error": "No."}, len(before) + 1)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain"])
async def test_an_answer_that_is_one_object_is_read_whole(kind: str) -> None:
    body = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    parts, wire, _ = await read_all(body[:10], body[10:], kind=kind)
    assert (words(parts), wire.ended) == ("a", True)
    assert (await read_all(b"", kind="application/json"))[0] == []


@pytest.mark.parametrize("before", [[], [text("a")], [text("a"), STOP]])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_an_event_without_end_is_not_read_on(before: list[bytes], kind: str) -> None:
    pieces = [b'data: {"choices":[', *[bytes(100)] * 1000]
    parts, wire, read = await read_all(*before, *pieces, kind=kind)
    assert read < len(before) + 15
    assert words(parts) == ("a" if before and "event" in kind else "")
    assert not wire.ended


async def test_others_get_their_turn_while_a_long_read_is_parsed() -> None:
    """One read from a busy server may contain thousands of deltas."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    events = [text("word ")] * 5_000 + [STOP, DONE]
    task = asyncio.create_task(other())
    parts, wire, _ = await read_all(b"".join(events))
    task.cancel()
    assert (words(parts), wire.ended) == ("word " * 5_000, True)
    assert turns >= len(b"".join(events)) // http._PIECE > 5


async def test_other_tasks_run_between_a_long_event_and_its_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_PIECE", 100)
    event, turns = text("word " * 60), list[bool]()
    loop = asyncio.get_running_loop()
    pieces = iter([event[start : start + 100] for start in range(0, len(event), 100)])

    async def read_piece() -> bytes:
        loop.call_soon(turns.append, True)
        return next(pieces, b"")

    response = ModelResponse(200, {"content-type": "text/event-stream"}, read_piece)
    async for parts in Canned(response, ChatWire()).stream(ModelRequest("m", ())):
        assert words(list(parts)) == "word " * 60
        assert turns
        break

"""The OpenAI adapter on a real socket, through the real SDK: what it sends, and every way an answer can go wrong."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from app.domain.blocks import Block
from app.domain.errors import PermanentError, ProviderError, TransientError
from app.llm import http as adapter
from app.llm.openai import OpenAIChatProvider
from app.llm.openai_quirks import Quirks
from app.llm.provider import BlockText, Message, MessageEnded, MessageStarted, ModelRequest, Part
from tests.integration.canned import Answer, CannedServer, Ending, canned_server

REQUEST = ModelRequest("gpt-6-sol", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))
JSON = {"content-type": "application/json"}


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    data = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(data)}\n\n".encode()


SAID = chunk({"role": "assistant", "content": "Hi"})
STOP = chunk({}, "stop")
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        yield server


@pytest.fixture
async def provider(server: CannedServer) -> AsyncIterator[OpenAIChatProvider]:
    async with OpenAIChatProvider("a key", server.url + "/v1") as provider:
        yield provider


async def heard(provider: OpenAIChatProvider) -> list[Part]:
    return [part async for parts in provider.stream(REQUEST) for part in parts]


def texts(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, BlockText))


async def failure(provider: OpenAIChatProvider, told: list[Part] | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await listen(provider, [] if told is None else told)
    return raised.value


async def listen(provider: OpenAIChatProvider, told: list[Part]) -> None:
    async for parts in provider.stream(REQUEST):
        told += parts


# --- what is sent --------------------------------------------------------------------------------------------


async def test_a_request_carries_the_key_and_the_body_byte_for_byte(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(SAID + STOP + DONE, headers={"x-request-id": "req_1"})
    assert (await heard(provider))[0] == MessageStarted({}, "req_1")
    (asked,) = server.requests
    assert asked.target == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer a key"
    assert asked.headers["content-type"] == "application/json"
    assert json.loads(asked.body)["messages"] == [{"role": "user", "content": "Hello"}]


async def test_a_server_of_ones_own_has_a_name_quirks_and_headers_and_needs_no_key(server: CannedServer) -> None:
    server.answer = Answer(SAID + STOP + DONE)
    quirks = Quirks(extra={"top_k": 1})
    async with OpenAIChatProvider("", server.url, name="mine", quirks=quirks, headers={"X-Title": "turns"}) as provider:
        assert provider.name == "mine"
        await heard(provider)
    (asked,) = server.requests
    assert asked.target == "/chat/completions"
    assert asked.headers["x-title"] == "turns"
    assert json.loads(asked.body)["top_k"] == 1


async def test_a_connection_is_used_again_after_a_whole_answer(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(SAID + STOP + DONE)
    for _ in range(3):
        await heard(provider)
    assert (len(server.requests), server.connections) == (3, 1)


async def test_what_a_gateway_compressed_is_read_all_the_same(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(gzip.compress(SAID + STOP + DONE), headers={"content-encoding": "gzip"}, sizes=[5])
    assert texts(await heard(provider)) == "Hi"


# --- how it ends ---------------------------------------------------------------------------------------------


async def test_what_the_network_gave_is_told_at_once(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(SAID, ending="wait")
    async with aclosing(provider.stream(REQUEST)) as batches:
        assert texts(list(await anext(batches))) == "Hi"


@pytest.mark.parametrize("ending", ["wait", "end"])
async def test_closing_the_stream_closes_the_connection(
    ending: Ending, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(SAID * 100_000, ending=ending)
    async with aclosing(provider.stream(REQUEST)) as batches:
        await anext(batches)
    await server.closed.acquire()


async def test_a_cancelled_reader_closes_the_connection(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(SAID, ending="wait")
    started = asyncio.Event()

    async def read() -> None:
        async for _ in provider.stream(REQUEST):
            started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await server.closed.acquire()


@pytest.mark.parametrize("body", [SAID + STOP + DONE, SAID + STOP])
async def test_a_server_that_does_not_hang_up_after_the_end_is_not_waited_for(
    body: bytes, server: CannedServer, provider: OpenAIChatProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_LONGEST_DRAIN", 0.01)
    monkeypatch.setattr(adapter, "_LONGEST_TAIL", 0.01)
    server.answer = Answer(body, ending="wait")
    assert isinstance((await heard(provider))[-1], MessageEnded)
    await server.closed.acquire()


async def test_what_comes_after_the_reason_to_stop_is_told_and_after_the_last_word_is_not(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    first, second = SAID + STOP, chunk({"content": " there"})
    server.answer = Answer(first + second + DONE + SAID * 2, sizes=[len(first), 3, len(second), len(DONE) + 9])
    assert texts(await heard(provider)) == "Hi there"
    assert texts(await heard(provider)) == "Hi there"
    assert server.connections == 1


@pytest.mark.parametrize("ending", ["cut", "reset"])
@pytest.mark.parametrize("body", [SAID + STOP + DONE, SAID + STOP])
async def test_a_connection_lost_after_the_end_does_not_matter(
    ending: Ending, body: bytes, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(body, ending=ending, sizes=[len(SAID)] if ending == "cut" else [65_536])
    if ending == "reset":  # what had not been read by then is lost with it
        with_error = await asyncio.gather(heard(provider), return_exceptions=True)
        assert isinstance(with_error[0], list | TransientError)
    else:
        assert isinstance((await heard(provider))[-1], MessageEnded)


async def test_a_stream_that_just_ends_ends(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(SAID)
    told = await heard(provider)
    assert texts(told) == "Hi"
    assert not any(isinstance(part, MessageEnded) for part in told)


async def test_a_stream_that_says_nothing_tells_nothing(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(b": OPENROUTER PROCESSING\n\n")
    assert await heard(provider) == []


async def test_an_answer_that_was_not_streamed_is_told(server: CannedServer, provider: OpenAIChatProvider) -> None:
    body = {"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    server.answer = Answer(json.dumps(body).encode(), headers=JSON, sizes=[9])
    told = await heard(provider)
    assert texts(told) == "Hi"
    assert isinstance(told[-1], MessageEnded)


async def test_nothing_at_all_with_a_good_status_is_no_answer(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(b"", headers=JSON)
    assert await heard(provider) == []


async def test_a_refusal_with_a_good_status_is_a_refusal(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(b'{"error":{"message":"No credits.","code":402}}', headers=JSON)
    error = await failure(provider)
    assert (type(error), error.type, error.message) == (PermanentError, "http_402", "No credits.")


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_connection_lost_in_mid_stream_is_transient_and_keeps_what_was_said(
    ending: Ending, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(SAID, ending=ending)
    told: list[Part] = []
    error = await failure(provider, told)
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"
    assert ending == "reset" or texts(told) == "Hi"


async def test_a_connection_lost_before_the_answer_is_transient() -> None:
    async with OpenAIChatProvider("a key", "http://127.0.0.1:1") as provider:
        error = await failure(provider)
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"


async def test_silence_is_transient_where_a_timeout_was_asked_for(server: CannedServer) -> None:
    async with OpenAIChatProvider("a key", server.url, read_timeout=0.05) as provider:
        server.answer = Answer(SAID, ending="wait")
        error = await failure(provider)
        assert isinstance(error, TransientError)
        assert error.type == "timeout_error"
        server.answer = Answer(b"", ending="wait", head=False)
        assert (await failure(provider)).type == "timeout_error"


async def test_a_stream_that_is_no_json_is_transient(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(SAID + b"data: <html>\n\n", headers={"x-request-id": "req_1"})
    error = await failure(provider)
    assert isinstance(error, TransientError)
    assert (error.type, error.request_id) == ("bad_stream", "req_1")
    assert "<html>" in error.message


@pytest.mark.parametrize("event", [b"", b"event: error\n"])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"message": "No.", "type": "server_error", "code": None}, TransientError),
        ({"message": "No.", "type": "invalid_request_error"}, PermanentError),
        ({"message": "No.", "code": 429}, TransientError),
    ],
)
async def test_an_error_in_mid_stream_is_sorted_by_what_it_says_since_its_status_is_200(
    event: bytes, said: dict[str, Any], kind: type[ProviderError], server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(SAID + event + b"data: " + json.dumps({"error": said}).encode() + b"\n\n" + SAID)
    told: list[Part] = []
    error = await failure(provider, told)
    assert (type(error), error.message, error.request_id) == (kind, "No.", "chatcmpl-1")
    assert texts(told) == "Hi"


async def test_an_error_after_the_reason_to_stop_is_raised(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(SAID + STOP + b'data: {"error":"No."}\n\n', sizes=[len(SAID + STOP)])
    assert (await failure(provider)).message == "No."


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, PermanentError),
        (401, PermanentError),
        (403, PermanentError),
        (404, PermanentError),
        (408, TransientError),
        (409, TransientError),
        (413, PermanentError),
        (422, PermanentError),
        (429, TransientError),
        (500, TransientError),
        (503, TransientError),
        (529, TransientError),
    ],
)
async def test_a_refusal_in_plain_words_is_sorted_by_its_status(
    status: int, kind: type[ProviderError], server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(b" Not now. ", status, {"content-type": "text/plain"})
    error = await failure(provider)
    assert (type(error), error.type, error.message) == (kind, f"http_{status}", "Not now.")
    assert (error.request_id, error.retry_after) == (None, None)


async def test_a_refusal_without_a_word_still_says_its_status(
    server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(b"", 502)
    assert "502" in (await failure(provider)).message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "4"}, 4.0),
        ({"retry-after-ms": "soon", "retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
async def test_when_to_try_again_is_read_in_all_the_ways_to_say_it(
    headers: dict[str, str], seconds: float | None, server: CannedServer, provider: OpenAIChatProvider
) -> None:
    server.answer = Answer(b"", 429, headers)
    assert (await failure(provider)).retry_after == seconds


async def test_when_to_try_again_may_be_a_date(server: CannedServer, provider: OpenAIChatProvider) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    server.answer = Answer(b"", 503, {"retry-after": format_datetime(until, usegmt=True)})
    seconds = (await failure(provider)).retry_after
    assert seconds is not None
    assert 3000 < seconds <= 3600


async def test_the_servers_word_on_trying_again_is_read(server: CannedServer, provider: OpenAIChatProvider) -> None:
    server.answer = Answer(b"", 429, {"x-should-retry": "false"})
    assert isinstance(await failure(provider), PermanentError)


async def test_a_closed_provider_refuses_rather_than_hangs(server: CannedServer) -> None:
    provider = OpenAIChatProvider("a key", server.url)
    await provider.aclose()
    assert (await failure(provider)).type == "connection_error"

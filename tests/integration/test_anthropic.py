"""The Anthropic adapter on a real socket, through the real SDK: what it sends, and every way an answer can go wrong."""

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
from app.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from app.llm import http as adapter
from app.llm.anthropic import AnthropicProvider
from app.llm.provider import BlockText, Message, MessageEnded, MessageStarted, ModelRequest, Part
from tests.integration.canned import Answer, CannedServer, Ending, canned_server

REQUEST = ModelRequest("claude-opus-5-5", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))
JSON = {"content-type": "application/json"}


def event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


START = event(type="message_start", message={"usage": {"input_tokens": 3}})
DELTA = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
END = event(type="message_stop")


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        yield server


@pytest.fixture
async def provider(server: CannedServer) -> AsyncIterator[AnthropicProvider]:
    async with AnthropicProvider("a key", server.url) as provider:
        yield provider


async def heard(provider: AnthropicProvider, request: ModelRequest = REQUEST) -> list[Part]:
    return [part async for parts in provider.stream(request) for part in parts]


async def failure(provider: AnthropicProvider, told: list[Part] | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await listen(provider, [] if told is None else told)
    return raised.value


async def listen(provider: AnthropicProvider, told: list[Part]) -> None:
    async for parts in provider.stream(REQUEST):
        told += parts


# --- what is sent --------------------------------------------------------------------------------------------


async def test_a_request_carries_the_key_the_version_and_the_body_byte_for_byte(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + END, headers={"request-id": "req_1"})
    assert (await heard(provider))[0] == MessageStarted({"input_tokens": 3}, "req_1")
    (asked,) = server.requests
    assert asked.target == "/v1/messages"
    assert asked.headers["authorization"] == "Bearer a key"
    assert asked.headers["anthropic-version"]
    assert asked.headers["content-type"] == "application/json"
    assert "anthropic-beta" not in asked.headers
    assert json.loads(asked.body)["messages"][0]["role"] == "user"


async def test_beta_features_are_named_in_their_header(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START + END)
    await heard(provider, ModelRequest("m", REQUEST.messages, params={"betas": ["a-1", "b-2"]}))
    assert server.requests[0].target == "/v1/messages?beta=true"
    assert server.requests[0].headers["anthropic-beta"] == "a-1,b-2"


async def test_a_connection_is_used_again_after_a_whole_answer(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + END)
    for _ in range(3):
        await heard(provider)
    assert (len(server.requests), server.connections) == (3, 1)


async def test_what_a_gateway_compressed_is_read_all_the_same(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(gzip.compress(START + DELTA + END), headers={"content-encoding": "gzip"}, sizes=[5])
    assert [type(part) for part in await heard(provider)] == [MessageStarted, BlockText, MessageEnded]


# --- how it ends ---------------------------------------------------------------------------------------------


async def test_what_the_network_gave_is_told_at_once(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START + DELTA, ending="wait")
    async with aclosing(provider.stream(REQUEST)) as batches:
        told: list[Part] = []
        while len(told) < 2:
            told += await anext(batches)
    assert told[1] == BlockText(0, "Hi")


@pytest.mark.parametrize("ending", ["wait", "end"])
async def test_closing_the_stream_closes_the_connection(
    ending: Ending, server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + DELTA * 100_000, ending=ending)
    async with aclosing(provider.stream(REQUEST)) as batches:
        await anext(batches)
    await server.closed.acquire()


async def test_a_cancelled_reader_closes_the_connection(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START, ending="wait")
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


async def test_a_server_that_does_not_hang_up_after_the_end_is_not_waited_for(
    server: CannedServer, provider: AnthropicProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_LONGEST_DRAIN", 0.01)
    server.answer = Answer(START + END, ending="wait")
    assert isinstance((await heard(provider))[-1], MessageEnded)
    await server.closed.acquire()


async def test_what_comes_after_the_end_is_read_but_not_told(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START + END + DELTA * 2, sizes=[len(START + END), len(DELTA)])
    assert isinstance((await heard(provider))[-1], MessageEnded)
    assert isinstance((await heard(provider))[-1], MessageEnded)
    assert server.connections == 1


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_connection_lost_after_the_end_does_not_matter(
    ending: Ending, server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + END, ending=ending, sizes=[len(START)])
    assert isinstance((await heard(provider))[-1], MessageEnded)


async def test_a_stream_that_just_ends_ends(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START + DELTA)
    assert [type(part) for part in await heard(provider)] == [MessageStarted, BlockText]


async def test_a_stream_that_says_nothing_tells_nothing(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(b": hello\n\n")
    assert await heard(provider) == []


async def test_an_event_without_its_last_blank_line_is_told(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer((START + END).rstrip())
    assert isinstance((await heard(provider))[-1], MessageEnded)


async def test_an_error_without_its_last_blank_line_is_raised(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + event(type="error", error={"type": "overloaded_error", "message": "m"}).rstrip())
    assert (await failure(provider)).type == "overloaded_error"


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_connection_lost_in_mid_stream_is_transient_and_keeps_what_was_said(
    ending: Ending, server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(START + DELTA, ending=ending)
    told: list[Part] = []
    error = await failure(provider, told)
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"
    assert ending == "reset" or [type(part) for part in told] == [MessageStarted, BlockText]


async def test_a_connection_lost_before_the_answer_is_transient(server: CannedServer) -> None:
    async with AnthropicProvider("a key", "http://127.0.0.1:1") as provider:
        error = await failure(provider)
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"


async def test_silence_is_transient_where_a_timeout_was_asked_for(server: CannedServer) -> None:
    async with AnthropicProvider("a key", server.url, read_timeout=0.05) as provider:
        server.answer = Answer(START, ending="wait")
        error = await failure(provider)
        assert isinstance(error, TransientError)
        assert error.type == "timeout_error"
        server.answer = Answer(b"", ending="wait", head=False)
        assert (await failure(provider)).type == "timeout_error"


async def test_a_stream_that_is_no_json_is_transient(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(START + b"data: <html>\n\n", headers={"request-id": "req_1"})
    error = await failure(provider)
    assert isinstance(error, TransientError)
    assert (error.type, error.request_id) == ("bad_stream", "req_1")
    assert "<html>" in error.message


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("overloaded_error", TransientError),
        ("api_error", TransientError),
        ("rate_limit_error", TransientError),
        ("brand_new_error", TransientError),
        ("invalid_request_error", PermanentError),
        ("billing_error", PermanentError),
    ],
)
@pytest.mark.parametrize("own_id", ["req_2", None])
async def test_an_error_in_mid_stream_is_sorted_by_its_name_since_its_status_is_200(
    type: str, kind: type[ProviderError], own_id: str | None, server: CannedServer, provider: AnthropicProvider
) -> None:
    body = START + event(type="error", error={"type": type, "message": "No."}, request_id=own_id)
    server.answer = Answer(body, headers={"request-id": "req_1"})
    told: list[Part] = []
    error = await failure(provider, told)
    assert isinstance(error, kind)
    assert (error.type, error.message, error.request_id) == (type, "No.", own_id or "req_1")
    assert len(told) == 1


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, PermanentError),
        (401, PermanentError),
        (402, PermanentError),
        (403, PermanentError),
        (404, PermanentError),
        (408, TransientError),
        (409, TransientError),
        (413, TooLong),
        (422, PermanentError),
        (429, TransientError),
        (500, TransientError),
        (502, TransientError),
        (503, TransientError),
        (529, TransientError),
    ],
)
async def test_a_refusal_in_plain_words_is_sorted_by_its_status(
    status: int, kind: type[ProviderError], server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(b" Not now. ", status, {"content-type": "text/plain"})
    error = await failure(provider)
    assert type(error) is kind
    assert (error.type, error.message, error.request_id, error.retry_after) == (
        f"http_{status}",
        "Not now.",
        None,
        None,
    )


async def test_a_refusal_without_a_word_still_says_its_status(
    server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(b"", 502)
    assert "502" in (await failure(provider)).message


async def test_a_refusal_of_another_shape_is_told_as_it_came(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(b'{"detail":"no"}', 404, JSON)
    assert "detail" in (await failure(provider)).message


async def test_an_endless_refusal_is_cut(server: CannedServer, provider: AnthropicProvider) -> None:
    server.answer = Answer(b"x" * 100_000, 500)
    assert len((await failure(provider)).message) == 1_000


@pytest.mark.parametrize(
    ("name", "status", "word", "kind"),
    [
        ("invalid_request_error", 529, None, PermanentError),
        ("overloaded_error", 400, None, TransientError),
        ("rate_limit_error", 429, "false", PermanentError),
        ("invalid_request_error", 400, "true", TransientError),
        ("rate_limit_error", 429, "perhaps", TransientError),
    ],
)
async def test_the_servers_own_word_goes_before_the_name_and_the_name_before_the_status(
    name: str,
    status: int,
    word: str | None,
    kind: type[ProviderError],
    server: CannedServer,
    provider: AnthropicProvider,
) -> None:
    body = json.dumps({"error": {"type": name, "message": "No."}, "request_id": "req_1"}).encode()
    server.answer = Answer(body, status, {**JSON, **({"x-should-retry": word} if word else {})})
    error = await failure(provider)
    assert type(error) is kind
    assert (error.type, error.message, error.request_id) == (name, "No.", "req_1")


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
        ({}, None),
    ],
)
async def test_when_to_try_again_is_read_in_all_the_ways_to_say_it(
    headers: dict[str, str], seconds: float | None, server: CannedServer, provider: AnthropicProvider
) -> None:
    server.answer = Answer(b"", 429, headers)
    assert (await failure(provider)).retry_after == seconds


async def test_when_to_try_again_may_be_a_date(server: CannedServer, provider: AnthropicProvider) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    server.answer = Answer(b"", 503, {"retry-after": format_datetime(until, usegmt=True)})
    seconds = (await failure(provider)).retry_after
    assert seconds is not None
    assert 3000 < seconds <= 3600


async def test_a_closed_provider_refuses_rather_than_hangs(server: CannedServer) -> None:
    provider = AnthropicProvider("a key", server.url)
    await provider.aclose()
    assert (await failure(provider)).type == "connection_error"

"""Every adapter on a real socket, through its real SDK: all the ways an answer can end, with success or with a
failure.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.adapters import APIS, REQUEST, Talk, talking, texts
from tests.support.canned import Answer, Ending, canned_server
from tests.support.model_apis import providers_of
from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TooLong, TransientError
from turnstream.libraries.providers.connect import connect_providers
from turnstream.libraries.providers.transport import http
from turnstream.llm.provider import MessageEnded, MessageStarted, Part

LOST: list[Ending] = ["cut", "reset"]


@pytest.fixture(params=APIS)
async def talk(request: pytest.FixtureRequest) -> AsyncIterator[Talk]:
    async with talking(request.param) as talk:
        yield talk


@pytest.fixture
def whole(talk: Talk) -> bytes:
    return talk.api.begun + talk.api.said + talk.api.end


@pytest.fixture
def begun(talk: Talk) -> bytes:
    return talk.api.begun + talk.api.said


async def test_a_request_goes_where_the_api_is_with_the_key_and_comes_back_with_its_id(
    talk: Talk, whole: bytes
) -> None:
    talk.answers(whole, headers={talk.api.request_id: "req_1"})
    (started, *_) = await talk.heard()
    assert isinstance(started, MessageStarted)
    assert started.request_id == "req_1"
    (asked,) = talk.server.requests
    assert asked.target == talk.api.path
    name, key = talk.api.key
    assert asked.headers[name] == key
    assert (asked.headers["content-type"], asked.headers["accept"]) == ("application/json", "text/event-stream")
    assert json.loads(asked.body).get("model", "a-model") == "a-model"
    assert "a-model" in asked.target + asked.body.decode()


@pytest.mark.parametrize("name", APIS)
async def test_headers_and_further_parameters_of_a_provider_are_sent(name: str, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    async with canned_server() as server:
        file.write_text(
            f"""
            [providers.gateway]
            api = "{name}"
            base_url = "{server.url}"
            key = "a key"
            headers = {{ X-Title = "chat", Authorization = "Bearer $TOKEN" }}
            params = ["top_a"]
            """
        )
        (spec,) = providers_of(file, {"TOKEN": "other"})
        server.answer = Answer(APIS[name].begun + APIS[name].said + APIS[name].end)
        async with connect_providers([spec]) as (offered,):
            request = replace(REQUEST, params={"top_a": 0.5, "top_b": 1})
            told = [part async for parts in offered.provider.stream(request) for part in parts]
    assert texts(told) == "Hi"
    (asked,) = server.requests
    assert (asked.headers["x-title"], asked.headers["authorization"]) == ("chat", "Bearer other")
    assert {"top_a": 0.5}.items() <= json.loads(asked.body).items()
    assert "top_b" not in json.loads(asked.body)


async def test_a_connection_is_used_again_after_a_whole_answer(talk: Talk, whole: bytes) -> None:
    talk.answers(whole)
    for _ in range(3):
        await talk.heard()
    assert (len(talk.server.requests), talk.server.connections) == (3, 1)


async def test_a_body_that_a_gateway_compressed_is_read(talk: Talk, whole: bytes) -> None:
    talk.answers(gzip.compress(whole), headers={"content-encoding": "gzip"}, sizes=[5])
    told = await talk.heard()
    assert texts(told) == "Hi"
    assert isinstance(told[-1], MessageEnded)


async def test_parts_are_yielded_with_each_read(talk: Talk, begun: bytes) -> None:
    talk.answers(begun, ending="wait")
    told: list[Part] = []
    async with aclosing(talk.provider.stream(REQUEST)) as batches:
        while not texts(told):
            told += await anext(batches)
    assert texts(told) == "Hi"


@pytest.mark.parametrize("ending", ["wait", "end"])
async def test_closing_the_stream_closes_the_connection(ending: Ending, talk: Talk, begun: bytes) -> None:
    talk.answers(begun + talk.api.said * 30_000, ending=ending)
    async with aclosing(talk.provider.stream(REQUEST)) as batches:
        await anext(batches)
    await talk.server.closed.acquire()


async def test_a_cancelled_reader_closes_the_connection(talk: Talk, begun: bytes) -> None:
    talk.answers(begun, ending="wait")
    started = asyncio.Event()

    async def read() -> None:
        async for _ in talk.provider.stream(REQUEST):
            started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await talk.server.closed.acquire()


async def test_a_server_that_does_not_hang_up_after_the_end_is_not_waited_for(
    talk: Talk, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_DRAIN", 0.01)
    talk.answers(whole, ending="wait")
    assert isinstance((await talk.heard())[-1], MessageEnded)
    await talk.server.closed.acquire()


async def test_data_after_the_end_is_read_but_ignored(talk: Talk, whole: bytes) -> None:
    talk.answers(whole + talk.api.said * 2, sizes=[len(whole), len(talk.api.said)])
    for _ in range(2):
        assert texts(await talk.heard()) == ("Hi" if talk.api.ends else "HiHiHi")
    assert talk.server.connections == 1


@pytest.mark.parametrize("ending", LOST)
async def test_a_connection_lost_after_the_end_does_not_matter(ending: Ending, talk: Talk, whole: bytes) -> None:
    talk.answers(whole, ending=ending, sizes=[len(talk.api.begun)])
    if ending == "reset":  # unread data is lost when the connection is reset
        with_error = await asyncio.gather(talk.heard(), return_exceptions=True)
        assert isinstance(with_error[0], list | TransientError)
    else:
        assert isinstance((await talk.heard())[-1], MessageEnded)


async def test_a_stream_that_just_ends_ends_and_was_cut(talk: Talk, begun: bytes) -> None:
    talk.answers(begun)
    told = await talk.heard()
    assert texts(told) == "Hi"
    assert not any(isinstance(part, MessageEnded) for part in told)


async def test_a_stream_that_says_nothing_tells_nothing(talk: Talk) -> None:
    talk.answers(b": hello\n\n")
    assert await talk.heard() == []


async def test_an_event_without_its_last_blank_line_is_read(talk: Talk, whole: bytes) -> None:
    talk.answers(whole.rstrip())
    assert isinstance((await talk.heard())[-1], MessageEnded)


@pytest.mark.parametrize("ending", LOST)
async def test_a_connection_lost_in_mid_stream_is_transient_and_keeps_the_parts(
    ending: Ending, talk: Talk, begun: bytes
) -> None:
    talk.answers(begun, ending=ending)
    told: list[Part] = []
    error = await talk.failure(told)
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"
    assert error.message == "The provider closed the connection in the middle of its answer."
    assert ending == "reset" or texts(told) == "Hi"


async def test_a_connection_lost_before_the_answer_is_transient(talk: Talk) -> None:
    async with talk.api.make("a key", "http://127.0.0.1:1") as provider:
        talk.provider = provider
        error = await talk.failure()
    assert isinstance(error, TransientError)
    assert error.type == "connection_error"


async def test_silence_is_transient_where_a_timeout_was_asked_for(talk: Talk, begun: bytes) -> None:
    async with talk.impatient(read_timeout=0.3) as impatient:
        talk.answers(begun, ending="wait")
        error = await impatient.failure()
        assert isinstance(error, TransientError)
        assert error.type == "timeout_error"
        talk.answers(b"", ending="wait", head=False)
        assert (await impatient.failure()).type == "timeout_error"


async def test_a_stream_that_is_no_json_is_transient(talk: Talk, begun: bytes) -> None:
    talk.answers(begun + b"data: <html>\n\n", headers={talk.api.request_id: "req_1"})
    error = await talk.failure()
    assert isinstance(error, TransientError)
    assert (error.type, error.request_id) == ("bad_stream", "req_1")
    assert error.message == "The provider sent data that is not JSON in the middle of its answer."


async def test_a_response_other_than_http_is_transient(talk: Talk) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0 hello\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, talk.api.make("a key", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as provider:
        talk.provider = provider
        error = await talk.failure()
    assert (type(error), error.type) == (TransientError, "connection_error")
    closed = "The provider closed the connection before it answered."  # the text if no SDK is above httpx2
    assert error.message == (
        closed if talk.api.path == APIS["gemini"].path else "The provider's answer is not valid HTTP."
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, PermanentError) for status in (400, 403, 404, 422)),
        *((status, AccountRefused) for status in (401, 402)),
        *((status, TransientError) for status in (408, 409, 429, 500, 502, 503, 529)),
    ],
)
async def test_a_refusal_in_plain_words_is_sorted_by_its_status(
    status: int, kind: type[ProviderError], talk: Talk
) -> None:
    talk.answers(b" Not now. ", status=status, headers={"content-type": "text/plain"})
    error = await talk.failure()
    assert (type(error), error.type, error.message) == (kind, f"http_{status}", "Not now.")
    assert (error.request_id, error.retry_after) == (None, None)


@pytest.mark.parametrize("talk", ["anthropic"], indirect=True)
async def test_for_anthropic_413_means_that_the_conversation_is_too_long(talk: Talk) -> None:
    talk.answers(b" Not now. ", status=413, headers={"content-type": "text/plain"})
    assert isinstance(await talk.failure(), TooLong)


async def test_a_refusal_without_a_word_still_says_its_status(talk: Talk) -> None:
    talk.answers(b"", status=502)
    assert "502" in (await talk.failure()).message


async def test_an_endless_refusal_is_cut(talk: Talk) -> None:
    talk.answers(b"x" * 100_000, status=500)
    assert len((await talk.failure()).message) == 1_000


async def test_when_to_try_again_and_whether_is_the_servers_word(talk: Talk) -> None:
    talk.answers(b"", status=429, headers={"retry-after": "4"})
    assert (await talk.failure()).retry_after == 4.0
    talk.answers(b"", status=429, headers={"x-should-retry": "false"})
    assert isinstance(await talk.failure(), PermanentError)


async def test_a_closed_provider_refuses_rather_than_hangs(talk: Talk) -> None:
    await talk.provider.aclose()
    assert (await talk.failure()).type == "connection_error"


# --- other content types ---------------------------------------------------------------------------------------------

LOGIN = b"<!DOCTYPE html>\n<html><head><title>Log in</title></head><body>" + b"\n\n" * 100 + b"</body></html>"


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "", "text/plain"])
@pytest.mark.parametrize("size", [3, 65_536])
async def test_a_page_with_status_200_is_a_transient_failure(talk: Talk, kind: str, size: int) -> None:
    headers = {talk.api.request_id: "req_1"} | ({"content-type": kind} if kind else {})
    talk.answers(LOGIN, headers=headers, sizes=[size])
    error = await talk.failure()
    assert (type(error), error.type, error.request_id) == (TransientError, "bad_content_type", "req_1")
    assert error.message == "The server answered with a page of HTML: Log in. It is no answer of a model."


async def test_another_content_type_is_named(talk: Talk) -> None:
    talk.answers(b"Service is sleeping.", headers={"content-type": "text/plain"})
    assert (await talk.failure()).message == "The server answered with text/plain, which is no answer of a model."
    talk.answers(b"\x89PNG", headers={"content-type": "image/png"})
    assert (await talk.failure()).message == "The server answered with image/png, which is no answer of a model."


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", ""])
@pytest.mark.parametrize("size", [1, 65_536])
async def test_events_of_another_content_type_are_read_all_the_same(talk: Talk, kind: str, size: int) -> None:
    body = talk.api.begun + talk.api.said + talk.api.end
    talk.answers(body, headers={"content-type": kind} if kind else {}, sizes=[size])
    assert texts(await talk.heard()) == "Hi"

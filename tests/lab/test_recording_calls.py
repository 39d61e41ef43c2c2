"""Both adapters record the bytes that model calls send and receive. A recording neither delays a call nor makes it
fail.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from structlog.testing import capture_logs

from tests.contracts.test_provider import chat_stream_of, stream_of
from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError, ProviderError, TransientError
from turnstream.extensions.openai.provider import OpenAIChatProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.transport.http import http_client
from turnstream.llm.interceptor import CallPublisher, Interceptor, Send
from turnstream.llm.provider import Message, ModelCall, ModelRequest, Part, Provider
from turnstream.scripted import text
from turnstream_lab import recordings as recordings_module
from turnstream_lab.chaos import ChaosInterceptor, ChaosPlan
from turnstream_lab.recording import RecordedChunk, Recording
from turnstream_lab.recordings import RecordingInterceptor, Recordings
from turnstream_lab.replay import ReplayInterceptor

KEY = "sk-very-secret"
TURN = UUID(int=7)
REQUEST = ModelRequest(
    "claude-x", (Message("user", (Block(0, 0, 0, "text", "High?"),)),), call=ModelCall(TURN, 2, 1, "claude-x")
)
REPLY = text("It is ", "high.")
Adapter = AnthropicProvider | OpenAIChatProvider
Make = Callable[[str, Sequence[Interceptor]], Adapter]
ADAPTERS: Mapping[str, tuple[Make, bytes]] = {
    "anthropic": (lambda url, interceptors: AnthropicProvider(KEY, url, interceptors=interceptors), stream_of(REPLY)),
    "openai": (
        lambda url, interceptors: OpenAIChatProvider(KEY, url, interceptors=interceptors),
        chat_stream_of(REPLY),
    ),
}
OVERLOADED = Answer(
    json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": f"Not now, {KEY}."}}).encode(),
    529,
    {"content-type": "application/json", "retry-after": "0.01", "set-cookie": "who=me", "request-id": "req_1"},
)


@asynccontextmanager
async def answering() -> AsyncIterator[CannedServer]:
    """Yields a server, and waits at the end until all connections are closed."""
    async with canned_server() as server:
        yield server
        for _ in range(server.connections):
            await server.closed.acquire()


async def parts_of(provider: Provider, request: ModelRequest = REQUEST) -> list[Part]:
    async with aclosing(provider.stream(request)) as stream:
        return [part async for parts in stream for part in parts]


async def said_by(provider: Provider) -> list[Part] | str:
    """Returns the parts, or the error without its message: everything by which the engine decides."""
    try:
        return await parts_of(provider)
    except ProviderError as error:
        return f"{type(error).__name__} {error.type} {error.request_id} {error.retry_after}"


@pytest.fixture(params=ADAPTERS)
def make(request: pytest.FixtureRequest) -> Make:
    return ADAPTERS[request.param][0]


@pytest.fixture
def body(request: pytest.FixtureRequest, make: object) -> bytes:
    return next(body for adapter, body in ADAPTERS.values() if adapter is make)


async def recorded(make: Make, server: CannedServer, folder: Path) -> list[Part] | str:
    with Recordings(folder) as recordings:
        async with make(server.url, [RecordingInterceptor(recordings)]) as provider:
            return await said_by(CallPublisher(provider))


async def replayed(make: Make, recordings: list[Recording]) -> list[Part] | str:
    async with make("http://offline.invalid", [ReplayInterceptor(recordings)]) as provider:
        return await said_by(CallPublisher(provider))


@pytest.mark.parametrize("ending", ["end", "cut", "reset"])
async def test_an_answer_is_recorded_and_comes_again_part_by_part(
    make: Make, body: bytes, tmp_path: Path, ending: str
) -> None:
    async with answering() as server:
        server.answer = Answer(body if ending == "end" else body[:200], sizes=[50], ending=ending)  # type: ignore[arg-type]
        then = await recorded(make, server, tmp_path)
        (request,) = server.requests
    (recording,) = Recordings(tmp_path).read(TURN)
    assert recording.request == request.body
    assert recording.call == REQUEST.call
    assert recording.status == 200
    assert recording.ending == ("whole" if ending == "end" else "failed")
    assert recording.body == server.answer.body
    assert recording.head_at <= recording.reads[0].at <= recording.ended_at
    assert await replayed(make, [recording]) == then


async def test_a_refusal_is_recorded_without_key_or_cookie(make: Make, tmp_path: Path) -> None:
    async with answering() as server:
        server.answer = OVERLOADED
        then = await recorded(make, server, tmp_path)
    (path,) = (tmp_path / str(TURN)).iterdir()
    assert path.name == "attempt-000000001-round-002-try-01.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in path.read_text()
    assert "who=me" not in path.read_text()
    (recording,) = Recordings(tmp_path).read(TURN)
    assert (recording.status, recording.headers["retry-after"]) == (529, "0.01")
    assert then == "TransientError overloaded_error req_1 0.01"
    assert await replayed(make, [recording]) == then


async def test_a_call_without_a_response_is_recorded(make: Make, tmp_path: Path) -> None:
    async with answering() as server:
        url = server.url
    with Recordings(tmp_path) as recordings:
        async with make(url, [RecordingInterceptor(recordings)]) as provider:
            with pytest.raises(TransientError):
                await parts_of(CallPublisher(provider))
    (recording,) = Recordings(tmp_path).read(TURN)
    assert (recording.status, recording.ending) == (None, "failed")
    assert "connection_error" in str(await replayed(make, [recording])) or "timeout" in str(recording.failure)


async def test_an_answer_that_its_reader_closed_is_recorded_up_to_there(
    make: Make, body: bytes, tmp_path: Path
) -> None:
    with Recordings(tmp_path) as recordings:
        async with answering() as server, make(server.url, [RecordingInterceptor(recordings)]) as provider:
            server.answer = Answer(body[:200], ending="wait")
            async with aclosing(CallPublisher(provider).stream(REQUEST)) as stream:
                await anext(stream)
    (recording,) = Recordings(tmp_path).read(TURN)
    assert (recording.ending, recording.body) == ("closed", body[:200])


async def test_a_silence_that_was_left_is_left_again(make: Make, body: bytes) -> None:
    left = Recording("", "", b"{}", status=200, reads=(RecordedChunk(0.0, body[:200]),))
    tap = ReplayInterceptor([left, left])
    async with make("http://offline.invalid", [tap]) as provider:
        for over in (False, True):
            async with aclosing(provider.stream(REQUEST)) as stream:
                await anext(stream)
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.wait([waiting], timeout=0.05)
                assert not waiting.done()
                waiting.cancel()
                await asyncio.wait([waiting])
            assert tap.over.is_set() == over


async def test_calls_are_numbered_and_those_without_a_turn_have_a_folder_too(tmp_path: Path) -> None:
    make, body = ADAPTERS["anthropic"]
    with Recordings(tmp_path) as recordings:
        async with answering() as server, make(server.url, [RecordingInterceptor(recordings)]) as provider:
            server.answer = Answer(body)
            for _ in range(2):
                await parts_of(CallPublisher(provider))
            await parts_of(CallPublisher(provider), ModelRequest("claude-x", REQUEST.messages))
    names = sorted(path.name for path in (tmp_path / str(TURN)).iterdir())
    assert names == ["attempt-000000001-round-002-try-01.jsonl", "attempt-000000001-round-002-try-02.jsonl"]
    assert len(list((tmp_path / "other").iterdir())) == 1


async def test_only_selected_calls_are_recorded(tmp_path: Path) -> None:
    make, body = ADAPTERS["anthropic"]
    with Recordings(tmp_path) as recordings:
        tap = RecordingInterceptor(recordings, lambda call: call is not None and call.record)
        async with answering() as server, make(server.url, [tap]) as provider:
            server.answer = Answer(body)
            await parts_of(CallPublisher(provider))
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_cannot_be_written_fails_no_call(tmp_path: Path) -> None:
    make, body = ADAPTERS["anthropic"]
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with capture_logs() as logs:
        async with answering() as server:
            server.answer = Answer(body)
            assert isinstance(await recorded(make, server, blocked), list)
    assert [line["event"] for line in logs] == ["recording.failed"]


async def test_a_provider_that_is_announced_keeps_its_name() -> None:
    async with AnthropicProvider(KEY) as provider:
        assert CallPublisher(provider).name == "anthropic"


RECORDING = Recording("2026-11-20T10:00:00", "host/v1", b"{}")


def test_a_disk_that_is_too_slow_costs_recordings_and_nothing_else(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow() -> Recording:
        begun.set()
        go.wait()
        return RECORDING

    with capture_logs() as logs, Recordings(tmp_path, most_waiting=2) as recordings:
        recordings.enqueue(slow, 1)
        begun.wait()
        recordings.enqueue(slow, 1)
        recordings.enqueue(slow, 1)
        go.set()
    assert [line["event"] for line in logs] == ["recording.dropped"]
    assert len(list((tmp_path / "other").iterdir())) == 2


def test_a_disk_that_hangs_does_not_hold_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings_module, "_EXIT_PATIENCE", 0.01)
    begun, go = threading.Event(), threading.Event()

    def hang() -> Recording:
        begun.set()
        go.wait()
        return RECORDING

    with capture_logs() as logs, Recordings(tmp_path) as recordings:
        recordings.enqueue(hang, 1)
        begun.wait()
    go.set()
    recordings._writer.join()
    assert [line["event"] for line in logs] == ["recording.dropped"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no JSON"), RecursionError()])
def test_a_recording_that_cannot_be_made_or_written_keeps_no_other_from_the_disk(
    tmp_path: Path, error: Exception
) -> None:
    def fail() -> Recording:
        raise error

    with capture_logs() as logs, Recordings(tmp_path) as recordings:
        recordings.enqueue(fail, 1)
        recordings.enqueue(lambda: RECORDING, 1)
    assert [line["event"] for line in logs] == ["recording.failed"]
    assert len(list((tmp_path / "other").iterdir())) == 1


async def test_a_folder_that_cannot_be_read_fails_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: Path) -> None:
        raise OSError(5, "Input/output error")

    async def present(_: Sequence[UUID]) -> set[UUID]:
        raise AssertionError("there is nothing to ask for")

    monkeypatch.setattr(Path, "iterdir", gone)
    with capture_logs() as logs:
        assert await swept(Recordings(tmp_path).sweep(present, None)) == 0
    assert [line["event"] for line in logs] == ["recording.failed"]


def test_a_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    folder = tmp_path / str(TURN)
    folder.mkdir()
    (folder / "attempt-000000001-round-001-try-01.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="attempt-000000001-round-001-try-01"):
        Recordings(tmp_path).read(TURN)


async def test_an_intercepted_client_has_the_timeouts_of_a_plain_one_and_follows_redirects_below() -> None:
    seen: list[str] = []

    async def watch(request: httpx2.Request, send: Send) -> httpx2.Response:
        response = await send(request)
        seen.append(f"{request.url.path} {response.status_code}")
        return response

    def make(**options: Any) -> httpx2.AsyncClient:
        transport = httpx2.MockTransport(
            lambda request: (
                httpx2.Response(200, text="found")
                if request.url.path == "/new"
                else httpx2.Response(307, headers={"location": "/new"})
            )
        )
        return httpx2.AsyncClient(transport=transport, follow_redirects=True, **options)

    async with http_client(make, [watch], read_timeout=7.0) as client:
        assert (await client.post("http://model/old")).text == "found"
        assert client.timeout == make(timeout=httpx2.Timeout(7.0, connect=5.0)).timeout
    assert seen == ["/old 200"]


@pytest.mark.parametrize("name", ADAPTERS)
async def test_a_refusal_that_was_made_on_purpose_is_recorded_as_one_that_came(tmp_path: Path, name: str) -> None:
    make, _ = ADAPTERS[name]
    with Recordings(tmp_path) as recordings:
        interceptors: list[Interceptor] = [
            ChaosInterceptor(ChaosPlan(1, 1.0, ["rate_limit"])),
            RecordingInterceptor(recordings),
        ]
        async with make("http://nowhere.invalid", interceptors) as adapter:
            with pytest.raises(TransientError) as raised:
                await parts_of(CallPublisher(adapter))
    (recording,) = Recordings(tmp_path).read(TURN)
    assert (recording.status, recording.ending) == (429, "whole")
    assert json.loads(recording.body)["error"]["type"] == raised.value.type
    assert float(recording.headers["retry-after"]) == raised.value.retry_after

"""Features that only the adapter for Chat Completions has. The adapter uses the SDK and a real socket. test_adapters.py
tests the features that all adapters share.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.adapters import JSON, REQUEST, Talk, chunk, talking, texts
from tests.support.canned import Ending
from tests.support.model_apis import providers_of
from tests.support.pages import blocks
from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TransientError
from turnstream.extensions.openai.provider import OpenAIChatProvider
from turnstream.extensions.openai.quirks import Quirks
from turnstream.libraries.providers.transport import http
from turnstream.llm.provider import MessageEnded, Part

SAID = chunk({"role": "assistant", "content": "Hi"})
STOP = chunk({}, "stop")
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with talking("openai-chat") as talk:
        yield talk


async def test_a_server_of_ones_own_has_a_name_quirks_and_headers_and_needs_no_key(talk: Talk) -> None:
    talk.answers(SAID + STOP + DONE)
    quirks, url = Quirks(extra={"top_k": 1}), talk.server.url
    async with OpenAIChatProvider("", url, name="mine", quirks=quirks, headers={"X-Title": "turns"}) as provider:
        assert provider.name == "mine"
        async for _ in provider.stream(REQUEST):
            pass
    (asked,) = talk.server.requests
    assert asked.headers["x-title"] == "turns"
    assert json.loads(asked.body)["messages"] == [{"role": "user", "content": "Hello"}]
    assert json.loads(asked.body)["top_k"] == 1


async def test_a_server_that_does_not_hang_up_after_the_reason_to_stop_is_not_waited_for(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_TAIL", 0.01)
    talk.answers(SAID + STOP, ending="wait")
    assert isinstance((await talk.heard())[-1], MessageEnded)
    await talk.server.closed.acquire()


async def test_data_after_the_finish_reason_is_read_and_after_the_last_event_is_not(talk: Talk) -> None:
    first, second = SAID + STOP, chunk({"content": " there"})
    talk.answers(first + second + DONE + SAID * 2, sizes=[len(first), 3, len(second), len(DONE) + 9])
    for _ in range(2):
        assert texts(await talk.heard()) == "Hi there"
    assert talk.server.connections == 1


@pytest.mark.parametrize("ending", ["cut", "end"])
async def test_a_connection_lost_after_the_reason_to_stop_does_not_matter(ending: Ending, talk: Talk) -> None:
    talk.answers(SAID + STOP, ending=ending, sizes=[len(SAID)])
    assert isinstance((await talk.heard())[-1], MessageEnded)


async def test_an_answer_that_was_not_streamed_is_read(talk: Talk) -> None:
    body = {"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    talk.answers(json.dumps(body).encode(), headers=JSON, sizes=[9])
    told = await talk.heard()
    assert texts(told) == "Hi"
    assert isinstance(told[-1], MessageEnded)


async def test_nothing_at_all_with_a_good_status_is_no_answer(talk: Talk) -> None:
    talk.answers(b"", headers=JSON)
    assert await talk.heard() == []


async def test_a_refusal_with_a_good_status_is_a_refusal(talk: Talk) -> None:
    talk.answers(b'{"error":{"message":"No credits.","code":402}}', headers=JSON)
    error = await talk.failure()
    assert (type(error), error.type, error.message) == (AccountRefused, "http_402", "No credits.")


@pytest.mark.parametrize("event", [b"", b"event: error\n"])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"message": "No.", "type": "server_error", "code": None}, TransientError),
        ({"message": "No.", "type": "invalid_request_error"}, PermanentError),
        ({"message": "No.", "code": 429}, TransientError),
    ],
)
async def test_an_error_within_a_stream_is_classified_by_its_content_since_its_status_is_200(
    event: bytes, said: dict[str, Any], kind: type[ProviderError], talk: Talk
) -> None:
    talk.answers(SAID + event + b"data: " + json.dumps({"error": said}).encode() + b"\n\n" + SAID)
    told: list[Part] = []
    error = await talk.failure(told)
    assert (type(error), error.message, error.request_id) == (kind, "No.", "chatcmpl-1")
    assert texts(told) == "Hi"


async def test_an_error_after_the_reason_to_stop_is_raised(talk: Talk) -> None:
    talk.answers(SAID + STOP + b'data: {"error":"No."}\n\n', sizes=[len(SAID + STOP)])
    assert (await talk.failure()).message == "No."


def test_the_providers_of_the_page_can_be_read(tmp_path: Path) -> None:
    (table,) = blocks("docs/providers.md", "The Responses API", "toml")
    (tmp_path / "models.toml").write_text(table, encoding="utf-8")
    specs = {spec.name: spec for spec in providers_of(tmp_path / "models.toml", {"OPENAI_API_KEY": "sk-0"})}
    assert specs["openai"].api.name == "openai-responses"

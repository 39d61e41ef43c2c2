"""Answers that the provider stores (`background`): lost connections, takeovers by another process, cancellations."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.adapters import REQUEST, texts
from tests.support.model_apis import EXTENSIONS
from tests.support.responses_server import PaidAnswer, ResponsesServer, responses_server
from turnstream.config import Settings
from turnstream.domain.errors import AccountRefused, ConfigError, ProviderError, TransientError
from turnstream.domain.rounds import Round
from turnstream.extensions.openai.provider import OpenAIResponsesProvider
from turnstream.libraries.providers import models as model_setup
from turnstream.libraries.providers.models import open_models
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import AnswerKeeper, MessageEnded, ModelRequest, Part, discard_answer
from turnstream.scripted import ScriptedProvider

KEPT = replace(REQUEST, options={"background": True})
WORDS = ["The ", "tide ", "turns."]


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with responses_server() as server:
        yield server


@pytest.fixture
async def provider(server: ResponsesServer) -> AsyncIterator[OpenAIResponsesProvider]:
    async with OpenAIResponsesProvider("a key", server.url) as provider:
        yield provider


class Call:
    """A model call whose parts are read by a background task."""

    def __init__(self, provider: OpenAIResponsesProvider, request: ModelRequest = KEPT) -> None:
        self.parts: list[Part] = []
        self._grown = asyncio.Event()
        self.task = asyncio.create_task(self._read(provider, request))

    async def _read(self, provider: OpenAIResponsesProvider, request: ModelRequest) -> None:
        async with aclosing(provider.stream(request)) as stream:
            async for parts in stream:
                self.parts += parts
                self._grown.set()

    async def has(self, text: str) -> None:
        while texts(self.parts) != text:
            self._grown.clear()
            growing = asyncio.ensure_future(self._grown.wait())
            await asyncio.wait({growing, self.task}, return_when=asyncio.FIRST_COMPLETED)
            growing.cancel()
            assert not self.task.done(), self.task

    @property
    def retained(self) -> Any:
        accumulator = Accumulator(1, 1, 0)
        accumulator.feed(self.parts)
        return json.loads(accumulator.data or "{}").get("retained")


async def begun(server: ResponsesServer) -> PaidAnswer:
    answer = await server.asked.get()
    answer.begin()
    return answer


async def test_an_answer_is_kept_only_for_a_model_with_the_option(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    for request, kept in ((KEPT, True), (REQUEST, None), (replace(KEPT, params={"store": False}), True)):
        call = Call(provider, request)
        answer = await begun(server)
        answer.finish()
        await call.task
        assert answer.request.get("background") is kept
        assert answer.request["store"] is bool(kept)
        assert isinstance(call.parts[-1], MessageEnded)
        assert call.retained is None, "nothing is left to read"


async def test_a_connection_that_is_lost_behind_any_event_is_replaced_and_no_word_is_missing_or_twice(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    said = ""
    for number, word in enumerate(WORDS):
        answer.say(word)
        said += word
        await call.has(said)
        answer.cut()
        assert await server.read_again.get() is answer
        assert server.reads[number] == {"stream": "true", "starting_after": str(2 + number)}
    answer.finish()
    await call.task
    assert texts(call.parts) == "The tide turns."
    assert isinstance(call.parts[-1], MessageEnded)
    assert len(server.paid) == 1


async def test_a_stream_that_ends_before_its_answer_is_continued_and_events_that_come_again_are_left_out(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    server.repeats = True
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ", "tide ")
    await call.has("The tide ")
    answer.leave()
    await server.read_again.get()
    answer.say("turns.")
    answer.finish()
    await call.task
    assert texts(call.parts) == "The tide turns."


async def test_a_connection_that_is_lost_again_without_a_new_event_is_a_failure_of_the_call(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    answer.cut()
    await server.read_again.get()
    answer.cut()
    with pytest.raises(TransientError):
        await call.task
    assert call.retained["id"] == answer.id


async def test_an_answer_that_is_lost_in_its_middle_is_tried_again_by_another_call(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    server.lost.add(answer.id)
    answer.cut()
    with pytest.raises(TransientError):
        await call.task
    again = Call(provider, replace(KEPT, retained=call.retained))
    second = await begun(server)
    second.finish()
    await again.task
    assert len(server.paid) == 2


async def test_the_next_call_reads_the_answer_from_its_beginning_without_paying(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say(*WORDS[:2])
    await call.has("The tide ")
    call.task.cancel()
    answer.say(WORDS[2])
    answer.finish()
    again = Call(provider, replace(KEPT, retained=call.retained))
    await again.task
    assert texts(again.parts) == "The tide turns."
    assert (len(server.paid), server.reads) == (1, [{"stream": "true"}])


async def test_an_answer_to_another_request_is_cancelled_and_the_model_is_called(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    first = await begun(server)
    first.say("The ")
    await call.has("The ")
    call.task.cancel()
    again = Call(provider, replace(KEPT, retained=call.retained, system="Be brief."))
    second = await begun(server)
    assert first.cancelled.is_set()
    second.say("Tides.")
    second.finish()
    await again.task
    assert texts(again.parts) == "Tides."


@pytest.mark.parametrize("system", [None, "Be brief."])
async def test_if_the_provider_has_lost_the_answer_the_model_is_called_again(
    server: ResponsesServer, provider: OpenAIResponsesProvider, system: str | None
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    call.task.cancel()
    server.lost.add(answer.id)
    again = Call(provider, replace(KEPT, retained=call.retained, system=system))
    second = await begun(server)
    second.say(*WORDS)
    second.finish()
    await again.task
    assert texts(again.parts) == "The tide turns."


async def test_a_refused_key_is_no_lost_answer(server: ResponsesServer, provider: OpenAIResponsesProvider) -> None:
    server.refuses = True
    request = replace(KEPT, retained={"id": "resp_0", "request": ""})
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    call.task.cancel()
    with pytest.raises(AccountRefused):
        await Call(provider, replace(request, retained=call.retained)).task
    assert len(server.paid) == 1


async def test_an_answer_that_has_failed_is_not_read_again(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    assert call.retained["id"] == answer.id
    answer.finish("failed", error={"code": "server_error", "message": "It broke."})
    with pytest.raises(ProviderError):
        await call.task
    assert call.retained is None


async def test_an_answer_that_nobody_will_read_is_cancelled(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    call = Call(provider)
    answer = await begun(server)
    answer.say("The ")
    await call.has("The ")
    call.task.cancel()
    await provider.discard(call.retained)
    assert answer.cancelled.is_set()


async def test_a_listed_model_has_its_option_and_its_provider_cancels(server: ResponsesServer, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    own = f'[providers.own]\napi = "openai-responses"\nkey = "a key"\nbase_url = "{server.url}"\n'
    file.write_text(own + '[models.kept]\nprovider = "own"\nupstream = "a-model"\noptions = { background = true }\n')
    given = Settings(_env_file=None, models_file=file, anthropic_api_key=None)
    async with open_models(given, EXTENSIONS) as models:
        provider = models.provider_for("kept")
        async with aclosing(provider.stream(replace(REQUEST, model="kept"))) as stream:
            answer = await _first(stream, server)
            assert (answer.request["model"], answer.request["background"]) == ("a-model", True)
        assert isinstance(provider, AnswerKeeper)
        await provider.discard({"id": answer.id})
        assert answer.cancelled.is_set()
    await discard_answer(ScriptedProvider([]), {"id": answer.id})  # this provider stores no answers


async def _first(stream: AsyncGenerator[Sequence[Part], None], server: ResponsesServer) -> PaidAnswer:
    """Reads the first parts of the stream. Returns the answer."""
    first = asyncio.ensure_future(anext(stream))
    answer = await begun(server)
    await first
    return answer


@pytest.mark.parametrize(
    ("api", "options", "problem"),
    [
        ("openai-responses", "{ background = 1 }", r"`options\.background` of \[models\.m\] must be"),
        ("openai-responses", '{ background = "yes" }', r'must be one of false, true, not "yes"\.$'),
        (
            "openai-responses",
            "{ foreground = true }",
            r"`options\.foreground` of \[models\.m\] must be one of background",
        ),
        ("openai-chat", "{ background = true }", r"must be left out: this API has none\.$"),
        ("anthropic", '{ cache = "2h" }', r'must be one of "5m", "1h", "auto", not "2h"\.$'),
    ],
)
def test_an_option_that_an_api_does_not_have_stops_the_start(
    api: str, options: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f'[providers.own]\napi = "{api}"\n[models.m]\nprovider = "own"\noptions = {options}\n')
    with pytest.raises(ConfigError, match=problem):
        model_setup.default_model(Settings(_env_file=None, models_file=file, anthropic_api_key=None), EXTENSIONS)


def test_only_an_object_refers_to_an_answer() -> None:
    datas = (None, "{}", '{"retained":null}', '{"retained":"x"}', '{"retained":{"id":"resp_1"}}')
    assert [Round(1, 1, data=data).retained for data in datas] == [None] * 4 + [{"id": "resp_1"}]

"""The commands of the demo model: calls of any tool, thoughts, long answers, and failures of each kind."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from uuid import UUID

import httpx2
import pytest

from tests.support.model_apis import EXTENSIONS
from tests.support.model_requests import call, result, text
from turnstream.config import Settings
from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from turnstream.extensions.demo import provider as demo
from turnstream.extensions.demo.commands import FAILURES, HELP, commands_of
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.libraries.providers.models import open_models
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.interceptor import Send
from turnstream.llm.provider import Message, ModelCall, ModelRequest
from turnstream_lab.chaos import ChaosInterceptor, ChaosPlan

ANSWERS = ("/say one two three four five six", "one two three four five six")


def asking(message: str, *since: Message, may_use_tools: bool = True, turn: int | None = None) -> ModelRequest:
    identity = None if turn is None else ModelCall(UUID(int=turn), 1, 1, "demo")
    messages = (Message("user", (text(message),)), *since)
    return ModelRequest("demo", messages, may_use_tools=may_use_tools, call=identity)


def round_of(*names: str, failed: bool = False) -> tuple[Message, Message]:
    asked = tuple(Block(0, 1, 1, "tool_use", "{}", call(name, "{}").data, name, name) for name in names)
    return Message("assistant", asked), Message("user", tuple(result(name, "Sun.", is_error=failed) for name in names))


async def reply(request: ModelRequest, provider: DemoProvider | None = None) -> list[Block]:
    accumulator = Accumulator(1, 1, 0)
    async with aclosing((provider or DemoProvider(0)).stream(request)) as stream:
        changes = [change async for parts in stream for change in accumulator.feed(parts)]
    return [change for change in changes if isinstance(change, Block)]


async def shown(request: ModelRequest) -> list[str]:
    """Returns a short form of each block: a call as `name(input)`, and another block as its text."""
    return [f"{block.name}({block.text})" if block.is_call else block.text for block in await reply(request)]


async def error_of(request: ModelRequest, provider: DemoProvider | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await reply(request, provider)
    return caught.value


@pytest.mark.parametrize("message", ["What is /etc?", "and/or", "/unknown command", ""])
def test_a_message_without_a_command_has_none(message: str) -> None:
    assert commands_of(message) is None


async def test_the_demo_calls_the_requested_tools_one_in_each_round() -> None:
    message = 'Please:\n/call weather {"city": "Oslo"}\n  /call clock  \n'
    assert await shown(asking(message)) == ['weather({"city": "Oslo"})']
    assert await shown(asking(message, *round_of("weather"))) == ["clock({})"]
    assert await shown(asking(message, *round_of("weather"), *round_of("clock", failed=True))) == [
        "weather returned:\n\n> Sun.\n\nclock failed:\n\n> Sun."
    ]


async def test_the_demo_makes_all_calls_at_once_on_request() -> None:
    message = '/parallel\n/call weather {"city": "Oslo"}\n/call weather {"city": "Bergen"}'
    assert await shown(asking(message)) == ['weather({"city": "Oslo"})', 'weather({"city": "Bergen"})']


async def test_an_input_that_is_no_json_is_passed_on_as_it_is() -> None:
    assert await shown(asking("/call weather {city: Oslo")) == ["weather({city: Oslo)"]


async def test_the_demo_calls_no_tool_without_permission() -> None:
    assert await shown(asking("/call weather", may_use_tools=False)) == ["I did as I was asked."]


async def test_the_demo_thinks_and_answers_and_counts_on_request() -> None:
    assert await shown(asking("/think Hm, tides.\n/say The sea.")) == ["Hm, tides.", "The sea."]
    assert await shown(asking("/think\n/call clock")) == ["I was asked to think.", "clock({})"]
    assert await shown(asking("/think\n/call clock", *round_of("clock"))) == ["clock returned:\n\n> Sun."]
    assert await shown(asking("/long 3")) == ["1 2 3 "]
    assert await shown(asking("/help")) == [HELP]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("/call", "`/call` needs the name of a tool."),
        ("/long", "`/long` needs a number of words up to 100,000."),
        ("/long 1000000", "`/long` needs a number of words up to 100,000."),
        ("/fail", "`/fail` needs one of rate_limit, "),
        ("/fail miserably", "`/fail` needs one of rate_limit, "),
        ("/fail reset often", "`/fail` needs one of rate_limit, "),
    ],
)
async def test_a_wrong_command_gets_the_correct_form_as_an_answer(message: str, words: str) -> None:
    (answer,) = await shown(asking(message))
    assert answer.startswith(words)
    assert answer.endswith("`/help` lists all commands.")


@pytest.mark.parametrize(
    ("kind", "expected", "type"),
    [
        ("rate_limit", TransientError, "rate_limit_error"),
        ("overloaded", TransientError, "overloaded_error"),
        ("server_error", TransientError, "api_error"),
        ("bad_request", PermanentError, "invalid_request_error"),
        ("too_long", TooLong, "context_length_exceeded"),
        ("refused", TransientError, "connection_error"),
        ("reset", TransientError, "connection_error"),
        ("error_event", TransientError, "overloaded_error"),
    ],
)
async def test_the_demo_fails_as_requested(kind: str, expected: type[ProviderError], type: str) -> None:
    error = await error_of(asking(f"/fail {kind}"))
    assert (error.__class__, error.type) == (expected, type)
    assert error.retry_after == (1.0 if kind == "rate_limit" else None)


async def test_an_answer_that_was_to_be_truncated_lacks_its_end() -> None:
    accumulator = Accumulator(1, 1, 0)
    async for parts in DemoProvider(0).stream(asking(f"/fail truncation\n{ANSWERS[0]}")):
        list(accumulator.feed(parts))
    assert accumulator.started
    assert not accumulator.ended


async def test_an_answer_that_was_to_fall_silent_stays_open() -> None:
    request = asking(f"/fail silence\n{ANSWERS[0]}")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reply(request), 0.05)


def test_every_failure_is_in_the_help() -> None:
    assert [kind for kind in FAILURES if kind not in HELP] == []


async def test_so_many_calls_of_a_turn_fail_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = DemoProvider(0)
    message = f"/fail overloaded 2\n{ANSWERS[0]}"
    for _ in range(2):
        await error_of(asking(message, turn=1), provider)
    (answer,) = await reply(asking(message, turn=1), provider)
    assert answer.text == ANSWERS[1]
    await error_of(asking(message, turn=2), provider)
    monkeypatch.setattr(demo, "_MOST_COUNTED", 1)
    # The demo counts failures for a limited number of turns, and has forgotten the failures of this turn.
    await error_of(asking(message, turn=1), provider)
    assert [block.text for block in await reply(asking(message))] == [ANSWERS[1]]  # a request that belongs to no turn


def cut_after(*texts: str) -> Sequence[Message]:
    return [
        message for kept in texts for message in (Message("assistant", (text(kept),)), Message("user", (text(GO_ON),)))
    ]


async def test_the_demo_continues_behind_the_existing_text_on_request() -> None:
    message, answer = ANSWERS
    assert await shown(asking(message, *cut_after("one two"))) == [" three four five six"]
    assert await shown(asking(message, *cut_after("one two", " three "))) == ["four five six"]
    assert await shown(asking(message, *cut_after("something else"))) == [answer]
    behind_a_round = (*round_of("clock"), *cut_after("clock returned:\n\n"))
    assert await shown(asking("/call clock", *behind_a_round)) == ["> Sun."]


async def test_a_refusal_of_another_form_is_passed_on_in_its_words() -> None:
    async def gateway(request: httpx2.Request, send: Send) -> httpx2.Response:
        return httpx2.Response(502, content=pages(), request=request)

    async def pages() -> AsyncIterator[bytes]:
        yield b"<h1>Bad Gateway</h1>"

    provider = DemoProvider(0, [gateway])
    error = await error_of(asking("/say yes"), provider)
    assert (error.type, str(error)) == ("http_502", "http_502: The server answered with a page of HTML.")
    await provider.aclose()


async def test_the_calls_of_the_demo_can_be_disturbed() -> None:
    chaos = ChaosInterceptor(ChaosPlan(1, 1.0, ["overloaded"]))
    assert (await error_of(asking("/say yes"), DemoProvider(0, [chaos]))).type == "overloaded_error"
    async with open_models(Settings(_env_file=None, chaos=1, anthropic_api_key=None), EXTENSIONS) as models:
        assert "demo" in models.listed()

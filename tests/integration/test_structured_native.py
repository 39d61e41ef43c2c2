"""Structured turns with a provider that enforces the schema: the output is text, and everything else is as with a
tool.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic.types import OutputConfigParam
from openai.types.responses import ResponseFormatTextJSONSchemaConfigParam
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import TypeAdapter

from tests.contracts.test_provider import chat_stream_of, responses_stream_of, stream_of
from tests.integration.plays import Play, Stage, playing
from tests.support.harness import OWNER, Harness, results_of
from turnstream.domain.blocks import REJECTED, Block
from turnstream.domain.kinds import TEXT, VERDICT
from turnstream.domain.output import output_of
from turnstream.domain.turns import OutputSpec, Turn
from turnstream.engine.hooks import AfterTool, BeforeTool, Hooks
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.conversation.messages import NO_TEXT
from turnstream.llm.provider import Part
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

SCHEMA = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
STRICT = json.dumps({**SCHEMA, "additionalProperties": False})
NATIVE = OutputSpec(STRICT, native=True)


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def plausible(value: Any) -> str | None:
    return None if value["year"] < 2100 else "that year is in the future"


TOOLSET = Toolset([look], outputs=Outputs({"plausible": plausible}))
JUDGED = OutputSpec(STRICT, validator="plausible", native=True)


def ended(turn: Turn) -> tuple[str, str | None, str | None]:
    return turn.status, turn.stop_reason, output_of(turn)


def verdicts(turn: Turn) -> list[tuple[str, bool]]:
    return [(block.text, block.data == REJECTED) for block in turn.blocks if block.type == VERDICT]


# --- with the SDKs ---------------------------------------------------------------------------------------------------


def by_anthropic(stop_reason: str, *blocks: Sequence[Part]) -> bytes:
    return stream_of(*blocks).replace(b'"stop_reason": "tool_use"', f'"stop_reason": "{stop_reason}"'.encode())


def by_openai(stop_reason: str, *blocks: Sequence[Part]) -> bytes:
    finish = {"end_turn": "stop", "tool_use": "tool_calls", "refusal": "content_filter", "max_tokens": "length"}
    return chat_stream_of(*blocks).replace(
        b'"finish_reason": "tool_calls"', f'"finish_reason": "{finish[stop_reason]}"'.encode()
    )


def by_responses(stop_reason: str, *blocks: Sequence[Part]) -> bytes:
    body = responses_stream_of(*blocks)
    if stop_reason in {"end_turn", "tool_use"}:
        return body
    reason = {"refusal": "content_filter", "max_tokens": "max_output_tokens"}[stop_reason]
    told = f'"status": "incomplete", "incomplete_details": {{"reason": "{reason}"}}'
    return body.replace(b'"status": "completed"', told.encode()).replace(b"response.completed", b"response.incomplete")


Write = Callable[..., bytes]
ADAPTERS = [pytest.param(AnthropicProvider, by_anthropic, id="anthropic")]
ADAPTERS += [pytest.param(OpenAIChatProvider, by_openai, id="openai-chat")]
ADAPTERS += [pytest.param(OpenAIResponsesProvider, by_responses, id="openai-responses")]


@asynccontextmanager
async def told(adapter: type[AnthropicProvider], *bodies: bytes) -> AsyncIterator[tuple[Stage, AnthropicProvider]]:
    async with playing() as stage, adapter("key", stage.url) as provider:
        stage.rehearse("scripted", [Play(200, body, [60], "whole", [], "end_turn") for body in bodies])
        yield stage, provider


def format_of(request: dict[str, Any]) -> Any:
    """Returns the schema in the provider's request, parsed by the types of the provider's SDK."""
    if "text" in request:
        form = TypeAdapter(ResponseFormatTextJSONSchemaConfigParam).validate_python(request["text"]["format"])
        assert (form["name"], form["strict"]) == ("output", True)
        return form["schema"]
    if "response_format" in request:
        format = TypeAdapter(ResponseFormatJSONSchema).validate_python(request["response_format"])["json_schema"]
        assert (format["name"], format["strict"]) == ("output", True)
        return format["schema"]
    config = TypeAdapter(OutputConfigParam).validate_python(request["output_config"], strict=True)
    assert config["format"] is not None
    return config["format"]["schema"]


@pytest.mark.parametrize(("adapter", "write"), ADAPTERS)
async def test_the_model_calls_its_tools_and_then_writes_output_by_the_schema(
    harness: Harness, adapter: type[AnthropicProvider], write: Write
) -> None:
    answers = (
        write("tool_use", tool_use("look", {}, "toolu_1")),
        write("end_turn", text('{"year": ', "2345}")),
        write("end_turn", text('{"year": ', "1969}")),
    )
    async with told(adapter, *answers) as (stage, provider), harness.replica(provider, toolset=TOOLSET) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], output=JUDGED))
    assert ended(turn) == ("complete", "output", '{"year": 1969}')
    assert results_of(turn)["toolu_1"].text == "seen"
    wrong = "The output is not right. that year is in the future"
    assert verdicts(turn) == [(wrong, True), ("The output was accepted.", False)]
    assert stage.problems == []
    assert [format_of(request) for request in stage.asked] == [json.loads(STRICT)] * 3
    asked = stage.asked[2]
    assert wrong in json.dumps((asked.get("messages") or asked["input"])[-1])
    names = [tool.get("name") or tool["function"]["name"] for tool in stage.asked[0]["tools"]]
    assert names == ["look"]


@pytest.mark.parametrize(("adapter", "write"), ADAPTERS)
@pytest.mark.parametrize("reason", ["refusal", "max_tokens"])
async def test_an_error_that_another_attempt_cannot_fix_ends_the_turn_with_its_type(
    harness: Harness, adapter: type[AnthropicProvider], write: Write, reason: str
) -> None:
    async with (
        told(adapter, write(reason, text('{"year": 19'))) as (_, provider),
        harness.replica(provider, toolset=TOOLSET) as replica,
    ):
        turn = await harness.finish(replica, await harness.ask(output=NATIVE))
    assert ended(turn) == ("error", reason, None)
    assert turn.error is not None
    assert turn.error.type == reason
    assert turn.usage["output_tokens"] == 5
    assert turn.started_at is not None
    assert turn.ended_at is not None
    assert turn.rounds[0].sealed_at is not None


# --- by a script -----------------------------------------------------------------------------------------------------


async def run(harness: Harness, spec: OutputSpec, *replies: Reply) -> tuple[Turn, ScriptedProvider]:
    provider = ScriptedProvider(replies)
    async with harness.replica(provider, toolset=TOOLSET) as replica:
        return await harness.finish(replica, await harness.ask(tools=[look], output=spec)), provider


async def test_only_the_last_text_is_the_output(harness: Harness) -> None:
    turn, _ = await run(harness, NATIVE, message_of(thinking("Hm."), text("So:"), text('{"year":1}'), text(" ")))
    assert ended(turn) == ("complete", "output", '{"year":1}')


@pytest.mark.parametrize("written", ['{"year":"never"}', '{"year":', "In 1969."])
async def test_attempts_are_used_up(harness: Harness, written: str) -> None:
    spec = OutputSpec(STRICT, native=True, max_attempts=2)
    turn, provider = await run(harness, spec, *(message_of(text(written)) for _ in range(2)))
    assert ended(turn) == ("error", "max_attempts", None)
    assert [wrong for _, wrong in verdicts(turn)] == [True, True]
    assert provider.requests[1].messages[-1].blocks[0].text == verdicts(turn)[0][0]


async def test_a_reply_without_text_fails_its_attempt_and_the_model_gets_the_reason(harness: Harness) -> None:
    turn, provider = await run(harness, NATIVE, message_of(thinking("Hm.")), message_of(text('{"year":1}')))
    assert ended(turn) == ("complete", "output", '{"year":1}')
    assert provider.requests[1].messages[-1].blocks[-1].text == NO_TEXT
    turn, _ = await run(harness, OutputSpec(STRICT, native=True, max_attempts=1), message_of(thinking("Hm.")))
    assert ended(turn) == ("error", "invalid_response", None)


async def test_tools_are_iterations(harness: Harness) -> None:
    replies = [message_of(text("I look."), tool_use("look", {}, id)) for id in "ab"]
    turn, _ = await run(harness, OutputSpec(STRICT, native=True, max_iterations=2), *replies)
    assert ended(turn) == ("error", "max_iterations", None)
    assert verdicts(turn) == []


async def test_a_message_of_the_user_meanwhile_voids_the_output(harness: Harness) -> None:
    pause = Pause()
    replies: list[Reply] = [
        [*list(message_of(text('{"year":1}')))[:3], pause, *list(message_of(text('{"year":1}')))[3:]],
        message_of(tool_use("look", {}, "a")),
        message_of(text('{"year":2}')),
    ]
    provider = ScriptedProvider(replies)
    async with harness.replica(provider, toolset=TOOLSET) as replica:
        asked = await harness.ask(tools=[look], output=NATIVE)
        replica.worker.wake()
        await pause.reached.wait()
        async with Exchanges(harness.database).after(Target(OWNER, asked.chat, asked.turn, "steer"), None) as draft:
            await draft.steer([Block(0, 0, 0, TEXT, "The second one, please.")])
        await replica.worker.refresh(asked.turn)
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert ended(turn) == ("complete", "output", '{"year":2}')
    assert [block.type for block in turn.blocks][:3] == [TEXT, VERDICT, "user_text"]


class Told(Hooks):
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def before_tool(self, event: BeforeTool) -> None:
        self.said.append((event.call.type, event.call.name, event.input))

    async def after_tool(self, event: AfterTool) -> None:
        self.said.append((event.call.type, event.call.name, event.outcome.kind))


async def test_hooks_get_an_output_like_any_call(harness: Harness) -> None:
    told, replies = Told(), [message_of(text('{"year":"x"}')), message_of(text('{"year":1}'))]
    async with harness.replica(ScriptedProvider(replies), toolset=TOOLSET, hooks=[told]) as replica:
        await harness.finish(replica, await harness.ask(output=NATIVE))
    assert told.said == [
        ("text", "output", '{"year":"x"}'),
        ("text", "output", "bad_input"),
        ("text", "output", '{"year":1}'),
        ("text", "output", "ok"),
    ]


async def test_an_output_that_nobody_has_judged_when_the_server_dies_is_judged_by_the_next(harness: Harness) -> None:
    reached, asked = asyncio.Event(), await harness.ask(output=JUDGED)

    async def never(_value: Any) -> str | None:
        reached.set()
        await asyncio.Event().wait()
        return None

    first, silent = ScriptedProvider([message_of(text('{"year":1}'))]), Outputs({"plausible": never})
    async with harness.replica(first, toolset=Toolset([], outputs=silent), address="here") as replica:
        replica.worker.wake()
        await reached.wait()
        await replica.kill()
    second = ScriptedProvider([])
    async with harness.replica(second, toolset=TOOLSET, address="here") as replica:
        turn = await harness.finish(replica, asked)
    assert ended(turn) == ("complete", "output", '{"year":1}')
    assert second.requests == []

"""OpenAI's Agents SDK as a client of the server: runs, tools and streams, over Responses and Chat Completions."""

from base64 import b64encode
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    HostedMCPTool,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import ModelBehaviorError
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from tests.support.http_server import Server
from turnstream.domain.errors import PermanentError
from turnstream.scripted import message_of, text, thinking, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(autouse=True)
def nothing_is_traced() -> None:
    set_tracing_disabled(disabled=True)


@function_tool
def look(at: str) -> str:
    """Looks."""
    return f"{at} is blue"


def agent(model: Model) -> Agent:
    return Agent(name="Sailor", instructions="Be brief.", model=model, tools=[look])


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_a_run_calls_tools_and_continues_with_its_history(
    server: Server, client: AsyncOpenAI, kind: type[OpenAIResponsesModel | OpenAIChatCompletionsModel]
) -> None:
    name, provider = server.scripts.provider(
        message_of(tool_use("look", {"at": "the sea"}, "c1")), message_of(text("Blue.")), message_of(text("Bye."))
    )
    sailor = agent(kind(model=name, openai_client=client))
    first = await Runner.run(sailor, "Colour?")
    assert first.final_output == "Blue."
    second = await Runner.run(sailor, [*first.to_input_list(), {"role": "user", "content": "Thanks."}])
    assert second.final_output == "Bye."
    said = [block.text for message in provider.requests[2].messages for block in message.blocks]
    assert said == ["Colour?", '{"at":"the sea"}', "the sea is blue", "Blue.", "Thanks."]


async def test_a_run_is_streamed(server: Server, client: AsyncOpenAI) -> None:
    name = server.scripts.model(message_of(tool_use("look", {"at": "it"}, "c1")), message_of(text("Bl", "ue.")))
    run = Runner.run_streamed(agent(OpenAIResponsesModel(model=name, openai_client=client)), "Colour?")
    deltas = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert "".join(deltas) == run.final_output == "Blue."


class Sea(BaseModel):
    name: str


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_an_output_has_its_type_and_a_failure_its_class(
    server: Server, client: AsyncOpenAI, kind: type[OpenAIResponsesModel | OpenAIChatCompletionsModel]
) -> None:
    # The SDK names the output format `final_output`, so the output tool has this name.
    name = server.scripts.model(
        message_of(tool_use("final_output", {"name": "North"}, "c1")),
        [PermanentError("context_length_exceeded", "It is too long.")],
    )
    sailor = Agent(name="Sailor", model=kind(model=name, openai_client=client), output_type=Sea)
    assert (await Runner.run(sailor, "Which sea?")).final_output == Sea(name="North")
    # Over the Responses API, a failed response is not a rejected request, as on OpenAI's own server.
    error = ModelBehaviorError if kind is OpenAIResponsesModel else openai.BadRequestError
    with pytest.raises(error, match="It is too long") as failed:
        await Runner.run(sailor, "And now?")
    assert "context_length_exceeded" in str(getattr(failed.value, "code", failed.value))


async def test_a_run_has_tools_of_the_server_files_and_thoughts(server: Server, client: AsyncOpenAI) -> None:
    name, provider = server.scripts.provider(
        message_of(thinking("I look."), tool_use("doc_tree", {}, "c1")),
        message_of(thinking("Two."), text("Two pages.")),
    )
    offered = HostedMCPTool({"type": "mcp", "server_label": "turnstream", "require_approval": "never"})
    sailor = Agent(name="Sailor", model=OpenAIResponsesModel(model=name, openai_client=client), tools=[offered])
    data = f"data:text/plain;base64,{b64encode(b'Low tide at ten.').decode()}"
    file = {"type": "input_file", "filename": "tide.txt", "file_data": data}
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Which pages?"}, file]}]
    run = await Runner.run(sailor, asked)
    assert run.final_output == "Two pages."
    assert "reasoning_item" in {item.type for item in run.new_items}
    first, second = provider.requests
    assert [block.type for block in first.messages[0].blocks] == ["text", "document"]
    assert "doc_tree" in {tool.name for tool in first.tools}
    assert [block.tool_use_id for block in second.messages[-1].blocks] == ["c1"], "the server has run it"

"""Compaction, called through the package `openai` and through the session of the Agents SDK, over a real socket."""

from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesCompactionSession, OpenAIResponsesModel, Runner, SQLiteSession
from openai import AsyncOpenAI

from tests.extensions.openai_api.test_openai_responses import LOOK
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.errors import PermanentError
from turnstream.llm.conversation.messages import SUMMARISE, SUMMARISED
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

ITEMS: Any = [
    {"role": "user", "content": "Colour?"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "blue"},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
    {"role": "assistant", "content": "Yes."},
]


async def test_a_history_becomes_a_summary_that_continues(server: Server, api: Client, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(
        message_of(text("It is blue.")), message_of(text("Deep.")), message_of(text("Blue, deep."))
    )
    chats = len((await api.json("GET", "/api/chats"))["chats"])
    made = await client.responses.compact(model=model, input=ITEMS, instructions="Be brief.")
    assert made.object == "response.compaction"
    assert [item.type for item in made.output] == ["message", "message", "compaction"]
    assert made.usage.total_tokens == 15
    (request,) = provider.requests
    said = [block.text for message in request.messages for block in message.blocks]
    assert said == ["Colour?", "{}", "blue", "Blue.", "Sure?", "Yes.", SUMMARISE]
    assert (request.system, request.tools) == ("Be brief.", ())
    assert len((await api.json("GET", "/api/chats"))["chats"]) == chats
    compacted: Any = [item.to_dict(warnings=False) for item in made.output]
    question: Any = {"role": "user", "content": "How deep?"}
    answer = await client.responses.create(model=model, input=[*compacted, question])
    assert answer.output_text == "Deep."
    said = [block.text for message in provider.requests[1].messages for block in message.blocks]
    assert said == ["Colour?", "Sure?", f"{SUMMARISED}It is blue.", "How deep?"]
    again = await client.responses.compact(model=model, input=[*compacted, question, *answer.output])  # type: ignore[list-item]
    assert [item.type for item in again.output] == ["message", "message", "message", "compaction"]


async def test_a_conversation_that_is_named_stays_as_it_is(server: Server, api: Client, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("Blue.", "A summary.", "Again.")))
    first = await client.responses.create(model=model, input="Colour?", tools=[LOOK])
    assert first.conversation is not None
    made = await client.responses.compact(model=model, previous_response_id=first.id)
    assert [item.type for item in made.output] == ["message", "compaction"]
    said = [block.text for message in provider.requests[1].messages for block in message.blocks]
    assert said == ["Colour?", "Blue.", SUMMARISE]
    items = (await client.conversations.items.list(first.conversation.id)).data
    assert [item.type for item in items] == ["message", "message"]
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.compact(model=model, previous_response_id=first.id, input="Hi")
    assert refused.value.param == "input"


async def test_an_invalid_input_of_a_compaction_is_refused(server: Server, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.compact(model="plain")
    assert refused.value.param == "input"
    foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAAABpM0Yj"}]
    with pytest.raises(openai.BadRequestError, match="as this server has made it") as refused:
        await client.responses.create(model="plain", input=foreign)
    assert refused.value.param == "input[0]"

    model = server.scripts.model([PermanentError("http_400", "The input is too odd.")])
    with pytest.raises(openai.BadRequestError, match="too odd"):
        await client.responses.compact(model=model, input=ITEMS)


async def test_the_compaction_session_of_the_agents_sdk_works(database_url: str) -> None:
    provider = ScriptedProvider([message_of(text(word)) for word in ("Blue.", "It is blue.", "Deep.")])
    async with (
        serving(database_url, offers=[ProviderModels(provider, ["gpt-4.1"])]) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key=await server.token("ada"), max_retries=0) as client,
    ):
        session = OpenAIResponsesCompactionSession(
            "s", SQLiteSession("s"), client=client, should_trigger_compaction=lambda _: False
        )
        sailor = Agent(name="Sailor", model=OpenAIResponsesModel("gpt-4.1", openai_client=client))
        await Runner.run(sailor, "Colour?", session=session)
        await session.run_compaction({"force": True})
        assert [item.get("type") for item in await session.get_items()] == ["message", "compaction"]
        assert (await Runner.run(sailor, "How deep?", session=session)).final_output == "Deep."
    said = [block.text for message in provider.requests[2].messages for block in message.blocks]
    assert said == ["Colour?", f"{SUMMARISED}It is blue.", "How deep?"]

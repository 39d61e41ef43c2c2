"""OpenAI's conversations, called through the package `openai` over a real socket."""

from typing import Any

import openai
import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.extensions.openai_api.test_openai_responses import LOOK
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def texts_of(client: AsyncOpenAI, conversation: str, **options: Any) -> list[str]:
    items = [item.to_dict() async for item in client.conversations.items.list(conversation, **options)]
    return [part["text"] for item in items for part in item.get("content", ())]  # type: ignore[attr-defined]


async def test_a_conversation_has_the_items_of_its_responses(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(*(message_of(text(f"{number}.")) for number in range(5)))
    made = await client.conversations.create(metadata={"topic": "ships"})
    for number in range(5):
        await client.responses.create(model=model, input=f"{number}?", conversation=made.id)
    said = [each for number in range(5) for each in (f"{number}?", f"{number}.")]
    assert await texts_of(client, made.id, order="asc", limit=3) == said
    assert await texts_of(client, made.id, limit=3) == said[::-1]
    assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "ships"}
    changed = await client.conversations.update(made.id, metadata={"topic": "sea"})
    assert changed.metadata == {"topic": "sea"}
    (first, *_) = (await client.conversations.items.list(made.id, order="asc")).data
    assert first.id is not None
    assert (await client.conversations.items.retrieve(first.id, conversation_id=made.id)).to_dict() == first.to_dict()
    await client.conversations.items.delete(first.id, conversation_id=made.id)
    assert await texts_of(client, made.id) == []
    await client.conversations.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_functions_have_their_calls_and_outputs_among_the_items(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(message_of(tool_use("look", {}, "c1")), message_of(text("Blue.")))
    made = await client.conversations.create()
    await client.responses.create(model=model, input="Colour?", tools=[LOOK], conversation=made.id)
    output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "blue"}]
    await client.responses.create(model=model, input=output, conversation=made.id)
    items = [item async for item in client.conversations.items.list(made.id, order="asc")]
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]


async def test_a_thread_from_elsewhere_is_imported_and_continues(
    server: Server, api: Client, client: AsyncOpenAI
) -> None:
    thread: Any = [
        {"role": "user", "content": "What floats?"},
        {"role": "assistant", "content": "A ship."},
        {"role": "user", "content": [{"type": "input_text", "text": "And sinks?"}]},
    ]
    model, provider = server.scripts.provider(message_of(text("Then a stone.")))
    made = await client.conversations.create(items=thread)
    added = await client.conversations.items.create(made.id, items=[{"role": "assistant", "content": "A stone."}])
    assert [item.type for item in added.data][-1] == "message"
    await client.responses.create(model=model, input="What else?", conversation=made.id)
    sent = [block.text for message in provider.requests[0].messages for block in message.blocks]
    assert sent[:3] == ["What floats?", "A ship.", "And sinks?"]
    assert sent[-2:] == ["A stone.", "What else?"]
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    assert chat["title"] == "What floats?"


async def test_the_session_of_the_agents_sdk_pops_one_item_after_the_other(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(text("Deep.")))
    session = OpenAIConversationsSession(openai_client=client)
    items: Any = [
        [{"role": "user", "content": "Colour?"}],
        [
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "blue"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Blue."}]},
        ],
        [{"role": "user", "content": "Sure?"}],
        [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}],
    ]
    for batch in items:
        await session.add_items(batch)
    before: Any = await session.get_items()
    types = ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert [item["type"] for item in before] == types
    assert [item["call_id"] for item in before[1:3]] == ["c1", "c1"]
    for place in range(len(before) - 1, 0, -1):
        popped: Any = await session.pop_item()
        for name in ("type", "content", "arguments", "output"):
            assert popped.get(name) == before[place].get(name)
        rest: Any = await session.get_items()
        assert [item["type"] for item in rest] == types[:place]
    await client.responses.create(model=model, input="How deep?", conversation=session.session_id)
    (request,) = provider.requests
    assert [[block.text for block in message.blocks] for message in request.messages] == [["Colour?", "How deep?"]]
    assert [await session.pop_item() is None for _ in range(4)] == [False, False, False, True]


async def test_a_session_of_the_agents_sdk_gives_the_model_the_results_of_its_calls(
    server: Server, client: AsyncOpenAI
) -> None:
    name, provider = server.scripts.provider(
        message_of(tool_use("colour", {"of": "sea"}, "c1")), message_of(text("Blue.")), message_of(text("Sure."))
    )

    @function_tool
    def colour(of: str) -> str:
        """The colour of a thing."""
        return f"{of}: blue"

    set_tracing_disabled(disabled=True)
    sailor = Agent(name="Sailor", model=OpenAIResponsesModel(name, openai_client=client), tools=[colour])
    session = OpenAIConversationsSession(openai_client=client)
    await Runner.run(sailor, "Colour?", session=session)
    assert (await Runner.run(sailor, "Sure?", session=session)).final_output == "Sure."
    said = [block.text for message in provider.requests[2].messages for block in message.blocks]
    assert said == ["Colour?", '{"of":"sea"}', "sea: blue", "Blue.", "Sure?"]


async def test_only_the_last_item_of_an_answer_can_be_deleted(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(
        message_of(text("One.")), message_of(tool_use("look", {}, "c1")), message_of(text("Blue."))
    )
    made = await client.conversations.create()
    await client.responses.create(model=model, input="1?", conversation=made.id)
    (answer, _) = (await client.conversations.items.list(made.id)).data
    await client.responses.create(model=model, input="Colour?", tools=[LOOK], conversation=made.id)
    output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "blue"}]
    await client.responses.create(model=model, input=output, conversation=made.id)
    last = (await client.conversations.items.list(made.id)).data[0]
    for item, reason in ((answer, "must be the last item"), (last, "must be a message of the user")):
        assert item.id is not None
        with pytest.raises(openai.BadRequestError, match=reason):
            await client.conversations.items.delete(item.id, conversation_id=made.id)
    assert len((await client.conversations.items.list(made.id)).data) == 6

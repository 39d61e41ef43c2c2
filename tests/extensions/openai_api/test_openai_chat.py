"""OpenAI's Chat Completions, called through the package `openai` over a real socket."""

from base64 import b64encode
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.extensions.openai_api.test_openai_responses import LOOK
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.pictures import PIXEL
from turnstream.domain.errors import PermanentError
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text, thinking, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

FUNCTION: Any = {"type": "function", "function": {name: LOOK[name] for name in ("name", "description", "parameters")}}


def assistant(words: str) -> Any:
    return {"role": "assistant", "content": words}


def user(words: str) -> Any:
    return {"role": "user", "content": words}


async def chats_of(api: Client) -> list[dict[str, Any]]:
    chats: list[dict[str, Any]] = (await api.json("GET", "/api/chats"))["chats"]
    return chats


async def test_a_completion_continues_behind_its_history(server: Server, api: Client, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("One.", "Two.", "Other.")))
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, user("1")]
    first = await client.chat.completions.create(model=model, messages=messages)
    assert first.choices[0].message.content == "One."
    assert first.choices[0].finish_reason == "stop"
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 5)
    messages.append({"role": "assistant", "content": "One."})
    await client.chat.completions.create(model=model, messages=[*messages, user("2")])
    (chat,) = await chats_of(api)
    assert len((await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]) == 4
    assert [request.system for request in provider.requests] == ["Be brief.", "Be brief."]
    await client.chat.completions.create(model=model, messages=[*messages, user("else")])
    assert len(await chats_of(api)) == 1, "a branch beside the second message"


async def test_a_history_from_elsewhere_becomes_a_chat(server: Server, api: Client, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(text("Blue.")))
    call = {"id": "c9", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    messages: list[Any] = [
        user("Hello?"),
        {"role": "assistant", "content": "Hi. Wait.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c9", "content": "water"},
        {"role": "assistant", "content": "Water."},
        user("Which colour?"),
    ]
    await client.chat.completions.create(model=model, messages=messages)
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[0].messages]
    assert sent == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    (chat,) = await chats_of(api)
    assert chat["title"] == "Hello?"


async def test_a_stream_has_text_thoughts_calls_and_usage(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(
        message_of(thinking("Let me see."), text("Wa", "it."), tool_use("look", {"at": "sea"}, "c1")),
        message_of(text("Blue.")),
    )
    messages: list[Any] = [user("Colour?")]
    async with client.chat.completions.stream(
        model=model, messages=messages, tools=[FUNCTION], stream_options={"include_usage": True}
    ) as stream:
        chunks = [event.chunk async for event in stream if event.type == "chunk"]
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("Wait.", "tool_calls")
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "Let me see." in [(delta.model_extra or {}).get("reasoning_content") for delta in deltas]
    assert final.usage is not None
    assert final.usage.completion_tokens == 5
    assert message.tool_calls is not None
    assert (message.tool_calls[0].id, message.tool_calls[0].function.arguments) == ("c1", '{"at":"sea"}')
    messages += [
        {"role": "assistant", "content": "Wait.", "tool_calls": [message.tool_calls[0].to_dict()]},
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
    ]
    answered = await client.chat.completions.create(model=model, messages=messages, tools=[FUNCTION])
    assert answered.choices[0].message.content == "Blue."
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        await client.chat.completions.create(model=model, messages=[user("Else"), messages[2]])


async def test_tools_of_the_server_run_there(server: Server, client: AsyncOpenAI) -> None:
    replies = [message_of(text("I look."), tool_use("doc_tree", {}, "t1")), message_of(text("Nothing", " there."))]
    kept = [list(reply) for reply in replies]
    model = server.scripts.model(*kept, *kept)
    made = await client.chat.completions.create(model=model, messages=[user("List.")])
    assert made.choices[0].message.content == "I look.\n\nNothing there."
    assert made.choices[0].message.tool_calls is None
    async with client.chat.completions.stream(model=model, messages=[user("List.")]) as stream:
        assert (await stream.get_final_completion()).choices[0].message.content == "I look.\n\nNothing there."


async def test_images_and_files_reach_the_model(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(text("Seen.")))
    picture = f"data:image/png;base64,{b64encode(PIXEL).decode()}"
    content: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,SGVsbG8="}},
    ]
    await client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
    assert [block.type for block in provider.requests[0].messages[0].blocks] == ["text", "image", "document"]


class Day(BaseModel):
    month: int


async def test_structured_output_is_parsed_by_the_sdk(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(message_of(tool_use("Day", {"month": 5}, "c1")))
    made = await client.chat.completions.parse(model=model, messages=[user("A day?")], response_format=Day)
    assert made.choices[0].message.parsed == Day(month=5)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"functions": []}, "functions"),
        ({"stop": ["x"], "max_tokens": 0}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ],
)
async def test_a_parameter_that_has_no_place_is_refused_by_name(client: AsyncOpenAI, members: Any, param: str) -> None:
    body = {"model": "plain", "messages": [user("Hi")], **members}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.post("/chat/completions", body=body, cast_to=object)
    assert refused.value.param == param


async def test_a_model_that_fails_is_an_error_that_is_not_tried_again(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider([PermanentError("broken", "It is broken.")])
    patient = client.with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError, match="It is broken"):
        await patient.chat.completions.create(model=model, messages=[user("Hi")])
    assert len(provider.requests) == 1
    with pytest.raises(openai.APIError):
        _ = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=server.scripts.model([PermanentError("broken", "It is broken.")]),
                messages=[user(str(uuid4()))],
                stream=True,
            )
        ]


async def test_custom_tools_take_any_text(server: Server, client: AsyncOpenAI) -> None:
    patch, nothing = "*** A\n+b", "no JSON"
    calls = [message_of(tool_use("patch", {"input": patch}, "c1")) for _ in range(2)]
    model, provider = server.scripts.provider(*calls, message_of(text("Done.")))
    tool: Any = {"type": "custom", "custom": {"name": "patch", "description": "Patches.", "format": {"type": "text"}}}
    asked: Any = {"model": model, "tools": [tool, FUNCTION], "messages": [user("Go")]}
    choice: Any = {"type": "custom", "custom": {"name": "patch"}}
    stream = await client.chat.completions.create(stream=True, tool_choice=choice, **asked)
    deltas = [call.to_dict() async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert deltas == [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": patch}}]
    made = (await client.chat.completions.create(**asked)).choices[0]
    assert made.finish_reason == "tool_calls"
    assert made.message.to_dict()["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": patch}}
    ]
    result: Any = {"role": "tool", "tool_call_id": "c1", "content": nothing}
    last = await client.chat.completions.create(**{**asked, "messages": [user("Go"), made.message.to_dict(), result]})
    assert last.choices[0].message.content == "Done."
    assert [tool.name for tool in provider.requests[0].tools] == ["patch", "look"]
    assert provider.requests[0].params["tool_choice"] == {"type": "tool", "name": "patch"}
    said = [block.text for message in provider.requests[2].messages for block in message.blocks]
    assert said[-1] == nothing


async def test_a_call_of_a_custom_tool_from_elsewhere_is_recorded(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(text("Done.")))
    call: Any = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "+b"}}
    messages: Any = [
        user("Go"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    await client.chat.completions.create(model=model, messages=messages)
    said = [block.text for message in provider.requests[0].messages for block in message.blocks]
    assert said == ["Go", '{"input": "+b"}', "ok"]


@pytest.mark.parametrize("again", [False, True], ids=["once", "of an answer from here"])
async def test_a_model_with_prefill_continues_an_answer(server: Server, client: AsyncOpenAI, again: bool) -> None:
    provider = ScriptedProvider(
        [message_of(text("It is")), message_of(text(" blue.")), message_of(text("Yes."))][not again :]
    )
    server.scripts.offers.append(ProviderModels(provider, [Model(name := f"prefilled-{again}", prefill=True)]))
    messages: Any = [user("Go")]
    if again:
        await client.chat.completions.create(model=name, messages=messages)
    begun: Any = {"role": "assistant", "content": "It is"}
    made = await client.chat.completions.create(model=name, messages=[*messages, begun])
    assert made.choices[0].message.content == " blue."
    sent = provider.requests[-1].messages
    assert [(message.role, message.blocks[-1].text) for message in sent] == [("user", "Go"), ("assistant", "It is")]
    begun["content"] += " blue."
    await client.chat.completions.create(model=name, messages=[*messages, begun, user("Sure?")])
    assert [message.role for message in provider.requests[-1].messages] == ["user", "assistant", "user"]


async def test_a_continued_answer_is_sent_as_one(server: Server, api: Client, client: AsyncOpenAI) -> None:
    provider = ScriptedProvider([message_of(text(" blue.")), message_of(text("Yes."))])
    server.scripts.offers.append(ProviderModels(provider, [Model("prefilled-on", prefill=True)]))
    begun: Any = [user("Go"), {"role": "assistant", "content": "It is"}]
    await client.chat.completions.create(model="prefilled-on", messages=begun)
    chat = (await api.json("GET", "/api/chats"))["chats"][0]["id"]
    await api.ask(f"/api/chats/{chat}", "Sure?", model="prefilled-on")
    sent = [(message.role, [block.text for block in message.blocks]) for message in provider.requests[1].messages]
    assert sent == [("user", ["Go"]), ("assistant", ["It is", " blue."]), ("user", ["Sure?"])]


async def test_a_continued_answer_stays_in_its_chat(server: Server, api: Client, client: AsyncOpenAI) -> None:
    said = ("Hi.", "It is", " blue", ".", " green.", "Yes.", "No.")
    provider = ScriptedProvider([message_of(text(words)) for words in said])
    server.scripts.offers.append(ProviderModels(provider, [Model("prefilled-in", prefill=True)]))

    async def complete(*messages: Any) -> str:
        made = await client.chat.completions.create(model="prefilled-in", messages=messages)
        return made.choices[0].message.content or ""

    def sent() -> list[tuple[str, str]]:
        blocks = [(each.role, [block.text for block in each.blocks]) for each in provider.requests[-1].messages]
        return [(role, "".join(texts)) for role, texts in blocks]

    hello: Any = [user("Hello?"), assistant(await complete(user("Hello?"))), user("Which colour?")]
    assert await complete(*hello) == "It is"
    assert await complete(*hello, assistant("It is")) == " blue"
    # A continued text remains one answer: after a second continuation, and in later messages.
    assert await complete(*hello, assistant("It is blue")) == "."
    assert sent()[-1] == ("assistant", "It is blue")
    # If the client edits the text, the edited text begins a branch beside the answer.
    assert await complete(*hello, assistant("Perhaps")) == " green."
    assert sent()[2:] == [("user", "Which colour?"), ("assistant", "Perhaps")]
    assert await complete(*hello, assistant("Perhaps green."), user("Sure?")) == "Yes."
    assert await complete(*hello, assistant("It is blue."), user("Sure?")) == "No."
    assert sent() == [
        *((each["role"], each["content"]) for each in hello),
        ("assistant", "It is blue."),
        ("user", "Sure?"),
    ]
    chats = (await api.json("GET", "/api/chats"))["chats"]
    assert len(chats) == 1, "each of them is in the same chat"


async def test_a_continued_answer_that_is_not_stored_leaves_nothing_behind(
    server: Server, api: Client, client: AsyncOpenAI
) -> None:
    provider = ScriptedProvider([message_of(text("It is")), message_of(text(" blue."))])
    server.scripts.offers.append(ProviderModels(provider, [Model("prefilled-out", prefill=True)]))
    asked: Any = {"model": "prefilled-out", "messages": [user("Which?")]}
    await client.chat.completions.create(**asked)
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    asked["messages"].append(assistant("It is"))
    made = await client.chat.completions.create(**asked, store=False)
    assert made.choices[0].message.content == " blue."
    assert [each["id"] for each in (await api.json("GET", "/api/chats"))["chats"]] == [chat["id"]]
    assert len((await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]) == 2


async def test_a_model_for_side_tasks_leaves_no_chat(server: Server, api: Client, client: AsyncOpenAI) -> None:
    provider = ScriptedProvider(lambda _: message_of(text("A title")))
    server.scripts.offers.append(ProviderModels(provider, [Model("side", stores=False)]))
    made = await client.chat.completions.create(model="side", messages=[user("Name this chat.")])
    assert made.choices[0].message.content == "A title"
    async for _ in await client.chat.completions.create(model="side", messages=[user("Name it.")], stream=True):
        pass
    response = await client.responses.create(model="side", input="Name it.")
    assert (response.output_text, response.to_dict()["store"]) == ("A title", False)
    assert (await api.json("GET", "/api/chats"))["chats"] == []
    kept = await client.responses.create(model="side", input="Name it.", store=True)
    assert (await client.responses.retrieve(kept.id)).output_text == "A title"
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 1, "the request decides"


async def test_an_answer_is_not_continued(client: AsyncOpenAI) -> None:
    messages: Any = [user("Go"), {"role": "assistant", "content": "It is"}]
    with pytest.raises(openai.BadRequestError, match="`messages` must end with a message of the user") as refused:
        await client.chat.completions.create(model="plain", messages=messages)
    assert refused.value.param == "messages"

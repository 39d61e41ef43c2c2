"""Anthropic's Messages API, called through the package `anthropic` over a real socket."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import anthropic
import pytest
from anthropic import AsyncAnthropic, beta_async_tool

from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from tests.support.owner_rows import rows_of
from tests.support.pictures import PIXEL
from turnstream.domain.errors import AccountRefused, PermanentError, TransientError
from turnstream.libraries.providers.anthropic.parameters import PARAMETERS
from turnstream.libraries.providers.anthropic.render import render, render_count
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.llm.parameters import COMMON
from turnstream.llm.provider import BlockClosed, BlockOpened, MessageDelta, MessageEnded, ModelRequest
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.secrets import SEALED
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK: Any = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Any:
    return {"role": "assistant", "content": content}


def result(call: str, content: Any, **more: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **more}


async def chats_of(api: Client) -> list[dict[str, Any]]:
    chats: list[dict[str, Any]] = (await api.json("GET", "/api/chats"))["chats"]
    return chats


async def test_a_message_continues_behind_its_history(server: Server, api: Client, client: AsyncAnthropic) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("One.", "Two.", "Other.")))
    given: Any = {"model": model, "max_tokens": 100}
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    first = await client.messages.create(**given, system=system, messages=[user("1")])
    assert (first.type, first.role, first.model, first.stop_reason) == ("message", "assistant", model, "end_turn")
    assert [block.to_dict() for block in first.content] == [{"type": "text", "text": "One."}]
    assert (first.usage.input_tokens, first.usage.output_tokens) == (10, 5)
    messages = [user("1"), assistant(first.content)]
    await client.messages.create(**given, system=system, messages=[*messages, user("2")])
    (chat,) = await chats_of(api)
    assert len((await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]) == 4
    await client.messages.create(**given, messages=[*messages, user([{"type": "text", "text": "else"}])])
    assert len(await chats_of(api)) == 1, "a branch beside the second message"
    assert [request.system for request in provider.requests] == ["Be brief.", "Be brief.", None]
    assert [request.params["max_tokens"] for request in provider.requests] == [100, 100, 100]


async def test_a_stream_is_accumulated_by_the_sdk(server: Server, client: AsyncAnthropic) -> None:
    model = server.scripts.model(
        message_of(
            thinking("Let me ", "see.", signature="s+/="), text("Wa", "it."), tool_use("look", {"at": "sea"}, "c1")
        )
    )
    async with client.messages.stream(model=model, max_tokens=100, messages=[user("Colour?")], tools=[LOOK]) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert types.count("content_block_start") == types.count("content_block_stop") == 3
    assert {"thinking", "signature", "text", "input_json", "message_stop"} <= set(types)
    assert [block.to_dict() for block in final.content] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "s+/="},
        {"type": "text", "text": "Wait."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}},
    ]
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", 5)


async def test_raw_events_have_the_order_and_the_ids_of_the_log(server: Server, client: AsyncAnthropic) -> None:
    model = server.scripts.model(message_of(text("Hel", "lo.")))
    stream = await client.messages.create(model=model, max_tokens=9, messages=[user("Hi")], stream=True)
    types = [event.type async for event in stream]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_results_of_tools_continue_the_turn(server: Server, api: Client, client: AsyncAnthropic) -> None:
    model, provider = server.scripts.provider(
        message_of(
            thinking("Hm.", signature="abc"),
            tool_use("look", {"at": "sea"}, "c1"),
            tool_use("look", {"at": "sky"}, "c2"),
        ),
        message_of(tool_use("look", {}, "c3")),
        message_of(text("Blue.")),
    )
    given: Any = {"model": model, "max_tokens": 100, "tools": [LOOK], "tool_choice": {"type": "any"}}
    messages = [user("Colour?")]
    made = await client.messages.create(**given, messages=messages)
    assert made.stop_reason == "tool_use"
    messages.append(assistant(made.content))
    with pytest.raises(anthropic.BadRequestError, match="`tool_result` for each"):
        await client.messages.create(**given, messages=[*messages, user([result("c1", "green")])])
    with pytest.raises(anthropic.BadRequestError, match="`tool_result` for each"):
        await client.messages.create(**given, messages=[*messages, user("And?")])
    picture: Any = {"type": "base64", "media_type": "image/png", "data": b64encode(PIXEL).decode()}
    messages.append(
        user(
            [
                result("c1", [{"type": "text", "text": "green"}, {"type": "image", "source": picture}]),
                result("c2", "dark", is_error=True),
            ]
        )
    )
    made = await client.messages.create(**given, messages=messages)
    assert [block.type for block in made.content] == ["tool_use"]
    messages += [assistant(made.content), user([result("c3", "blue"), {"type": "text", "text": "Be quick."}])]
    made = await client.messages.create(**given, messages=messages)
    assert [block.to_dict() for block in made.content] == [{"type": "text", "text": "Blue."}]
    again = await client.messages.create(**given, messages=messages[:3])
    assert [block.type for block in again.content] == ["tool_use"], "a repetition gets the same part"
    assert len(await chats_of(api)) == 1
    sent = provider.requests[-1].messages
    assert [[block.type for block in message.blocks] for message in sent] == [
        ["text"],
        ["thinking", "tool_use", "tool_use"],
        ["tool_result", "tool_result"],
        ["tool_use"],
        ["tool_result", "text"],
    ]
    assert sent[1].blocks[0].data is not None
    assert json.loads(sent[1].blocks[0].data)["signature"] == "abc"
    assert [block.is_error for block in sent[2].blocks] == [False, True]
    assert [spec.name for spec in provider.requests[0].tools] == ["look"], "and no tool of the server"


async def test_the_tool_runner_of_the_sdk_runs_its_tools(server: Server, api: Client, client: AsyncAnthropic) -> None:
    model = server.scripts.model(
        *(message_of(tool_use("water", {"name": f"sea {number}"}, f"c{number}")) for number in range(8)),
        message_of(text("Salty.")),
    )

    @beta_async_tool
    async def water(name: str) -> str:
        """The water of a sea.

        Args:
            name: its name
        """
        return f"water of {name}"

    runner = client.beta.messages.tool_runner(
        model=model, max_tokens=100, tools=[water], messages=[user("Taste.")], max_iterations=10
    )
    final = await runner.until_done()
    assert final.content[0].to_dict()["text"] == "Salty."
    assert len(await chats_of(api)) == 1, "the rounds of the client are not those of `TURNSTREAM_MAX_ROUNDS`"


async def test_thoughts_and_blocks_of_the_provider_come_back_byte_for_byte(
    server: Server, api: Client, client: AsyncAnthropic
) -> None:
    hidden = '{"type":"redacted_thinking","data":"\\u00e4+/ =="}'
    redacted: Any = [BlockOpened(0, "redacted_thinking", hidden), BlockClosed(0)]
    found = (
        '{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"type":"web_search_result",'
        '"title":"t","url":"u","page_age":null,"encrypted_content":"é=="}]}'
    )
    called = '{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}'
    server_call: Any = [BlockOpened(0, "server_tool_use", called, '{"query":"x"}', "s1", "web_search"), BlockClosed(0)]
    server_result: Any = [BlockOpened(0, "web_search_tool_result", found, "", "s1"), BlockClosed(0)]
    blocks = redacted, thinking("Hm.", signature="é=="), server_call, server_result, text("So.")
    model, provider = server.scripts.provider(message_of(*blocks), message_of(*blocks), message_of(text("Yes.")))
    given: Any = {"model": model, "max_tokens": 100}
    made = await client.messages.create(**given, messages=[user("Hi")])
    async with client.messages.stream(**given, messages=[user("Hi")]) as stream:
        streamed = await stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in made.content]
    assert [block.type for block in made.content] == [
        "redacted_thinking",
        "thinking",
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]
    assert made.content[0].to_dict()["data"] == "ä+/ =="
    foreign = [user("Elsewhere"), assistant(made.content), user("Go on")]
    await client.messages.create(**given, messages=foreign)
    sent = provider.requests[-1].messages[1].blocks
    assert [json.loads(block.data or "{}") for block in sent[:2]] == [
        json.loads(hidden),
        {"type": "thinking", "thinking": "", "signature": "é=="},
    ]
    assert [block.type for block in sent] == [block.type for block in made.content]
    assert len(await chats_of(api)) == 3


async def test_results_of_calls_that_nobody_waits_for_are_taken(
    server: Server, api: Client, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("Blue.", "Deep.", "Red.")))
    call = {"type": "tool_use", "id": "c9", "name": "look", "input": {"at": "sea"}}
    messages = [user("Hello?"), assistant([{"type": "text", "text": "Wait."}, call]), user([result("c9", "water")])]
    made = await client.messages.create(model=model, max_tokens=9, messages=messages, tools=[LOOK])
    assert made.content[0].to_dict()["text"] == "Blue."
    assert [block.type for block in made.content] == ["text"], "and not what the client has sent"
    sent = [[block.type for block in message.blocks] for message in provider.requests[0].messages]
    assert sent == [["text"], ["text", "tool_use"], ["tool_result"]]
    messages += [assistant(made.content), user("And?")]
    await client.messages.create(model=model, max_tokens=9, messages=messages, tools=[LOOK])
    (chat,) = await chats_of(api)
    turns = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]
    assert [(turn["role"], len(turn["blocks"])) for turn in turns] == [
        ("user", 1), ("assistant", 3), ("user", 0), ("assistant", 1), ("user", 1), ("assistant", 1),
    ]  # fmt: skip
    messages = [user([result("gone", "fire"), {"type": "text", "text": "Colour?"}])]
    await client.messages.create(model=model, max_tokens=9, messages=messages, tools=[LOOK])
    assert [block.text for block in provider.requests[2].messages[0].blocks] == ["fire", "Colour?"]


async def test_images_and_documents_reach_the_model(server: Server, api: Client, client: AsyncAnthropic) -> None:
    model, provider = server.scripts.provider(message_of(text("Seen.")), message_of(text("Read.")))
    data = b64encode(PIXEL).decode()
    upload = (await api.post("/api/uploads", content=PIXEL, headers={"Content-Type": "image/png"})).json()["id"]
    content: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{data}"}},
        {"type": "image", "source": {"type": "file", "file_id": upload}},
        {
            "type": "document",
            "title": "T",
            "source": {"type": "text", "media_type": "text/plain", "data": "Words."},
            "citations": {"enabled": True},
        },
        {"type": "text", "text": "What is it?"},
    ]
    await client.messages.create(model=model, max_tokens=9, messages=[user(content)])
    sent = provider.requests[0].messages[0].blocks
    assert [block.type for block in sent] == ["image", "image", "image", "document", "text"]
    assert json.loads(sent[3].data or "")["cite"] is True
    messages = [user(content), assistant("Seen."), user("And?")]
    await client.messages.create(model=model, max_tokens=9, messages=messages)
    assert len(await chats_of(api)) == 1
    elsewhere = [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]
    with pytest.raises(anthropic.BadRequestError, match="fetches no files"):
        await client.messages.create(model=model, max_tokens=9, messages=[user(elsewhere)])
    words = {"type": "text", "text": "What is it?"}
    wrong = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": data}}
    block = r"`messages` \(block 2 of the new message: `source\.media_type`\) must match the bytes"
    with pytest.raises(anthropic.BadRequestError, match=block):
        await client.messages.create(model=model, max_tokens=9, messages=[user([words, cast("Any", wrong)])])


async def test_tools_of_the_server_are_offered_without_others_or_on_request(
    server: Server, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(
        message_of(text("I look."), tool_use("doc_tree", {}, "t1")), message_of(text("Nothing.")), message_of(text("."))
    )
    made = await client.messages.create(model=model, max_tokens=9, messages=[user("List.")])
    assert [block.to_dict()["text"] for block in made.content] == ["I look.", "Nothing."]
    chosen: Any = {
        "type": "mcp_toolset",
        "mcp_server_name": "turnstream",
        "default_config": {"enabled": False},
        "configs": {"doc_tree": {"enabled": True}},
    }
    await client.messages.create(model=model, max_tokens=9, messages=[user("Else.")], tools=[LOOK, chosen])
    assert [spec.name for spec in provider.requests[-1].tools] == ["look", "doc_tree"]


async def test_an_output_format_is_met(server: Server, client: AsyncAnthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"sea": {"type": "string"}},
        "required": ["sea"],
        "additionalProperties": False,
    }
    model = server.scripts.model(*(message_of(tool_use("output", {"sea": "North"}, f"o{n}")) for n in range(2)))
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    given: Any = {"model": model, "max_tokens": 9, "messages": [user("Sea?")], "output_config": config}
    made = await client.messages.create(**given)
    assert json.loads(made.content[0].to_dict()["text"]) == {"sea": "North"}
    assert made.stop_reason == "end_turn"
    async with client.messages.stream(**given) as stream:
        assert json.loads(await stream.get_final_text()) == {"sea": "North"}


async def test_members_without_a_place_are_refused_and_labels_are_listed(
    server: Server, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(message_of(text("Yes.")))
    given: Any = {"model": model, "max_tokens": 9, "messages": [user("Hi")]}
    answer = await client.messages.with_raw_response.create(
        **given,
        cache_control={"type": "ephemeral"},
        metadata={"user_id": "ada"},
        service_tier="auto",
        thinking={"type": "adaptive"},
        extra_headers={"anthropic-beta": "some-2026-01-01"},
        extra_body={"temperature": 1, "context_management": {"edits": []}},
    )
    assert answer.headers["Turnstream-Ignored"] == (
        "cache_control, temperature, context_management, service_tier, anthropic-beta"
    )
    assert provider.requests[0].params == {"max_tokens": 9, "thinking": {"type": "adaptive"}}
    for member, value in {"temperature": 0.5, "container": "c", "compaction": {"type": "summarize"}}.items():
        with pytest.raises(anthropic.BadRequestError, match=f"`{member}`") as caught:
            await client.messages.create(**given, extra_body={member: value})
        assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("content", [5, True, {"type": "text", "text": "cold"}])
async def test_a_result_that_is_neither_a_text_nor_a_list_is_refused(client: AsyncAnthropic, content: Any) -> None:
    call: Any = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    messages = [user("Look."), assistant([call]), user([{**result("c1", ""), "content": content}])]
    with pytest.raises(anthropic.BadRequestError, match=r"`messages\.2\.content\.0\.content` must be a string or"):
        await client.messages.create(model="plain", max_tokens=9, messages=messages)


async def test_a_result_with_files_is_taken_without_empty_texts_or_refused_by_its_place(
    server: Server, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("look", {}, "c1")), message_of(text("Seen.")))
    picture = {"type": "image", "source": {"type": "base64", "data": b64encode(PIXEL).decode()}}
    given: Any = {"model": model, "max_tokens": 9, "tools": [LOOK]}
    asked = await client.messages.create(**given, messages=[user("Look.")])
    history = [user("Look."), assistant([block.to_dict() for block in asked.content])]
    for wrong, place in {
        "must hold at most 20 items": [picture] * 21,
        r"\.1\.title` must have at most 300": [picture, {**picture, "type": "document", "title": "t" * 301}],
    }.items():
        with pytest.raises(anthropic.BadRequestError, match=rf"`messages\.2\.content\.0\.content.*{wrong}"):
            await client.messages.create(**given, messages=[*history, user([result("c1", place)])])
    broken = [{"type": "image", "source": {"type": "base64", "data": "!"}}]
    with pytest.raises(anthropic.BadRequestError, match=r"`messages` \(block 1 of result 1: `source\.data`\)"):
        await client.messages.create(**given, messages=[*history, user([result("c1", broken)])])
    contents = [{"type": "text", "text": ""}, picture, {"type": "text", "text": "Sea."}]
    answer = await client.messages.create(**given, messages=[*history, user([result("c1", contents)])])
    assert answer.stop_reason == "end_turn"
    assert "image" in str(provider.requests[1].messages[2])


@pytest.mark.parametrize("content", [None, 5, [{"type": "text"}], [{"type": "image", "source": {}}]])
async def test_a_document_of_parts_that_are_no_texts_is_refused(client: AsyncAnthropic, content: Any) -> None:
    document = {"type": "document", "source": {"type": "content", "content": content}}
    with pytest.raises(anthropic.BadRequestError, match=r"`messages\.0\.content\.0\.source\.content` must hold only"):
        await client.messages.create(model="plain", max_tokens=9, messages=[user([document])])


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
async def test_an_empty_message_is_refused_by_its_place(client: AsyncAnthropic, content: Any) -> None:
    for earlier in ([], [user("Hi"), assistant("He")]):
        place = rf"`messages\.{len(earlier)}\.content` must not be empty"
        with pytest.raises(anthropic.BadRequestError, match=place):
            await client.messages.create(model="plain", max_tokens=9, messages=[*earlier, user(content)])
    with pytest.raises(anthropic.BadRequestError, match=r"must end with a message of the user\.'"):
        await client.messages.create(model="plain", max_tokens=9, messages=[])
    with pytest.raises(anthropic.BadRequestError, match="`system` must be a string or"):
        await client.messages.create(model="plain", max_tokens=9, messages=[user("Hi")], system=cast("Any", 5))


async def test_refusals_have_the_classes_of_the_sdk(server: Server, client: AsyncAnthropic) -> None:
    given: Any = {"max_tokens": 9, "messages": [user("Hi")]}
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**given, model="claude-none")
    assert (missing.value.type, bool(missing.value.request_id)) == ("not_found_error", True)
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await client.with_options(api_key="ts_wrong").messages.create(**given, model="plain")
    assert unknown.value.type == "authentication_error"
    with pytest.raises(anthropic.BadRequestError, match="`messages` must end with a message of the user"):
        await client.messages.create(model="plain", max_tokens=9, messages=[user("Hi"), assistant("He")])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await client.post("/v1/messages", body={"model": "plain", "messages": [user("Hi")]}, cast_to=object)


async def test_files_and_batches_are_calls_that_are_not_here(client: AsyncAnthropic) -> None:
    sent = ("a.txt", b"Water.", "text/plain")
    batch: Any = {"custom_id": "a", "params": {"model": "plain", "max_tokens": 9, "messages": [user("Hi")]}}
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "GET /v1/messages/batches": client.messages.batches.list,
        "POST /v1/messages/batches": partial(client.messages.batches.create, requests=[batch]),
        "GET /v1/files": client.beta.files.list,
        "POST /v1/files": partial(client.beta.files.upload, file=sent),
        "GET /v1/files/f1/content": partial(client.beta.files.download, "f1"),
        "DELETE /v1/files/f1": partial(client.beta.files.delete, "f1"),
    }
    for name, call in calls.items():
        with pytest.raises(anthropic.NotFoundError) as caught:
            await call()
        assert (caught.value.type, bool(caught.value.request_id)) == ("not_found_error", True)
        assert f"This server has no call {name};" in str(caught.value)


async def test_a_model_with_prefill_continues_an_answer(server: Server, client: AsyncAnthropic) -> None:
    provider = ScriptedProvider([message_of(text(" blue."))])
    server.scripts.offers.append(ProviderModels(provider, [Model("prefilled", prefill=True)]))
    given: Any = {"model": "prefilled", "max_tokens": 9}
    made = await client.messages.create(**given, messages=[user("Go"), assistant("It is")])
    assert [block.to_dict() for block in made.content] == [{"type": "text", "text": " blue."}]
    (asked,) = provider.requests
    assert [(message.role, message.blocks[-1].text) for message in asked.messages] == [
        ("user", "Go"),
        ("assistant", "It is"),
    ]
    assert json.loads(render(asked))["messages"][-1]["role"] == "assistant"


async def test_a_continued_answer_stays_in_its_chat(server: Server, api: Client, client: AsyncAnthropic) -> None:
    provider = ScriptedProvider([message_of(text(words)) for words in ("It is", " blue.", "Yes.")])
    server.scripts.offers.append(ProviderModels(provider, [Model("prefilled-here", prefill=True)]))
    given: Any = {"model": "prefilled-here", "max_tokens": 9}
    await client.messages.create(**given, messages=[user("Go")])
    await client.messages.create(**given, messages=[user("Go"), assistant("It is")])
    await client.messages.create(**given, messages=[user("Go"), assistant("It is blue."), user("Sure?")])
    sent = [(message.role, [block.text for block in message.blocks]) for message in provider.requests[2].messages]
    assert sent == [("user", ["Go"]), ("assistant", ["It is", " blue."]), ("user", ["Sure?"])]
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 1


async def test_a_continued_answer_has_its_secrets_encrypted(database_url: str) -> None:
    provider = ScriptedProvider(lambda _: message_of(text(" blue.")))
    parameters = (*COMMON, *(each for each in PARAMETERS if each.name == "mcp_servers"))
    offers = [ProviderModels(provider, [Model("m", prefill=True)], (), parameters)]
    servers = [{"type": "url", "url": "https://crm.test/mcp", "name": "crm", "authorization_token": "quite-a-secret"}]
    given: Any = {"model": "m", "max_tokens": 9, "extra_body": {"mcp_servers": servers}}
    async with (
        serving(database_url, offers=offers, master_key=new_master_key(), params_allow="mcp_servers") as server,
        AsyncAnthropic(base_url=server.url, api_key=await server.token("ada"), max_retries=0) as client,
    ):
        await client.messages.create(**given, messages=[user("Go")])
        await client.messages.create(**given, messages=[user("Go"), assistant("It is")])
    assert [request.params["mcp_servers"] for request in provider.requests] == [servers] * 2
    assert "quite-a-secret" not in json.dumps(await rows_of(database_url))


@pytest.mark.parametrize(
    ("type", "status", "given"),
    [
        ("rate_limit_error", 429, "rate_limit_error"),
        ("overloaded_error", 529, "overloaded_error"),
        ("invalid_request_error", 400, "invalid_request_error"),
        ("api_error", 500, "authentication_error"),
    ],
)
async def test_failures_of_the_model_have_the_classes_of_the_sdk(
    server: Server, client: AsyncAnthropic, type: str, status: int, given: str
) -> None:
    secret = "key sk-123 of the operator"
    replies: list[Any] = [
        [failed := (AccountRefused if type == "api_error" else PermanentError)(given, secret)],
        [*list(message_of(text("Half")))[:3], failed],
    ]
    model = server.scripts.model(*replies)
    sent: Any = {"model": model, "max_tokens": 9, "messages": [user("Hi")]}
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.with_options(max_retries=2).messages.create(**sent)
    assert (caught.value.status_code, caught.value.type) == (status, type)
    assert (secret in str(caught.value)) == (given != "authentication_error")
    with pytest.raises(anthropic.APIStatusError) as streamed:
        async with client.messages.stream(**sent) as stream:
            await stream.get_final_message()
    assert streamed.value.type == type


async def test_models_are_listed_in_anthropics_words_for_its_clients_alone(api: Client, client: AsyncAnthropic) -> None:
    listed = [model async for model in client.models.list()]
    assert [(model.type, model.id) for model in listed if model.id == "plain"] == [("model", "plain")]
    assert (await client.models.retrieve("plain")).display_name == "plain"
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("none")
    assert (await api.get("/v1/models")).json()["object"] == "list", "OpenAI's clients do not send the header"


async def test_a_key_is_taken_from_either_header(server: Server, api: Client) -> None:
    token = await server.token(api.owner)
    body = {"model": "plain", "max_tokens": 9, "messages": [user("Hi")]}
    for headers in ({"x-api-key": token}, {"Authorization": f"Bearer {token}"}):
        async with Client(server.url) as nobody:
            answer = await nobody.post(
                "/v1/messages", json=body, headers={"anthropic-version": "2023-06-01", **headers}
            )
            assert answer.status_code == 200, answer.text
    async with Client(server.url) as nobody:
        assert (await nobody.post("/v1/messages", json=body, headers={"x-api-key": "no"})).status_code == 401


async def test_messages_of_the_system_stay_in_their_place(server: Server, client: AsyncAnthropic) -> None:
    model, provider = server.scripts.provider(message_of(text("Yes.")))
    system: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0f3;"},
        {"type": "text", "text": "Be brief."},
    ]
    messages = [user("Hi"), {"role": "system", "content": "It is dark."}]
    await client.messages.create(model=model, max_tokens=9, system=system, messages=messages)
    assert provider.requests[0].system == "Be brief."
    (sent,) = provider.requests[0].messages
    assert [block.text for block in sent.blocks] == ["Hi", "<system-reminder>\nIt is dark.\n</system-reminder>"]


async def test_the_synchronous_client_works_too(server: Server, api: Client) -> None:
    token = await server.token(api.owner)
    model = server.scripts.model(message_of(text("Hel", "lo.")))

    def ask() -> list[str]:
        with anthropic.Anthropic(base_url=server.url, api_key=token, max_retries=0) as client:
            with client.messages.stream(model=model, max_tokens=9, messages=[user("Hi")]) as stream:
                streamed = "".join(stream.text_stream)
            made = client.messages.create(model="plain", max_tokens=9, messages=[user("Hi")])
            return [streamed, str(made.content[0].to_dict()["text"])]

    assert await asyncio.to_thread(ask) == ["Hello.", "Hello."]


async def test_a_stream_is_replayed_from_the_place_of_its_client(server: Server, api: Client) -> None:
    pause = Pause()
    model = server.scripts.model(pausing(pause, "Hel", "lo ", "there."))
    body = {"model": model, "max_tokens": 9, "stream": True, "messages": [user("Hi")]}
    async with api.stream("POST", "/v1/messages", json=body) as answer:
        name = answer.headers["Turnstream-Resume"]
        seen = ""
        async for piece in answer.aiter_text():
            seen += piece
            if "Hel" in seen:
                break
    pause.go.set()
    # the request returns at the end of the answer
    await api.post("/v1/messages", json=body, headers={"Turnstream-Resume": name})
    whole = (await api.post("/v1/messages", json=body, headers={"Turnstream-Resume": name})).text
    frames = [frame for frame in whole.split("\n\n") if "data:" in frame]
    ids = [frame.split("id: ")[1].split("\n")[0] for frame in frames]
    assert len(set(ids)) == len(ids)
    for place, id in enumerate(ids, 1):
        headers = {"Turnstream-Resume": name, "Last-Event-ID": id}
        rest = (await api.post("/v1/messages", json=body, headers=headers)).text
        assert _data(rest) == _data("\n\n".join(frames[place:])), id
    assert (await api.post("/v1/messages", json=body, headers={"Turnstream-Resume": "msg_1"})).status_code == 400
    headers = {"Turnstream-Resume": name, "Last-Event-ID": "9-99-0"}
    assert _data((await api.post("/v1/messages", json=body, headers=headers)).text) == _data(whole), "begins again"


def _data(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_key_makes_one_message_of_repeated_requests(server: Server, api: Client) -> None:
    model = server.scripts.model(message_of(tool_use("look", {}, "c1")), message_of(text("Once.")))
    headers = {"Idempotency-Key": "k1"}
    body: dict[str, Any] = {"model": model, "max_tokens": 9, "messages": [user("Hi")], "tools": [LOOK]}
    first, second = [(await api.post("/v1/messages", json=body, headers=headers)).json() for _ in range(2)]
    assert first == second
    body["messages"] = [*body["messages"], assistant(first["content"]), user([result("c1", "x")])]
    headers = {"Idempotency-Key": "k2"}
    third, fourth = [(await api.post("/v1/messages", json=body, headers=headers)).json() for _ in range(2)]
    assert third == fourth
    assert third["content"][0]["text"] == "Once."
    assert third["id"] != first["id"]


async def test_a_stream_ends_with_an_error_where_its_text_is_taken_back(database_url: str) -> None:
    away = TransientError("server_error", "away")
    async with serving(database_url, recovery="retry") as server:
        model = server.scripts.model([*list(message_of(text("Half of", " it")))[:3], away], message_of(text("All.")))
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            sent: Any = {"model": model, "max_tokens": 9, "messages": [user("Hi")]}
            async with client.messages.stream(**sent) as stream:
                name = stream.response.headers["Turnstream-Resume"]
                with pytest.raises(anthropic.APIStatusError, match="Turnstream-Resume") as caught:
                    await stream.get_final_message()
            assert caught.value.type == "overloaded_error"
            async with client.messages.stream(**sent, extra_headers={"Turnstream-Resume": name}) as stream:
                assert await stream.get_final_text() == "All."


async def test_a_thread_is_continued_by_the_id_of_its_last_message(
    server: Server, api: Client, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("One.", "Two.", "Three.")))
    thread = client.beta.messages.thread(model=model, max_tokens=9, system="Be brief.")
    for word in ("1", "2"):
        await thread.send(user(word))
    assert [len(request.messages) for request in provider.requests] == [1, 3]
    assert [request.system for request in provider.requests] == ["Be brief.", "Be brief."]
    (chat,) = await chats_of(api)
    await api.json("DELETE", f"/api/chats/{chat['id']}")
    answer = await thread.send(user("3"))
    assert answer.content[0].to_dict()["text"] == "Three."
    assert len(provider.requests[2].messages) == 5, "the SDK has sent the whole conversation"


async def test_a_history_that_another_thread_has_led_to_is_refused_with_unknown_results(client: AsyncAnthropic) -> None:
    made = await client.messages.create(model="plain", max_tokens=9, messages=[user("Hi")])
    thread = {"type": "continue", "previous_message_id": made.id}
    messages = [user([result("c1", "blue")])]
    sent: Any = {"model": "plain", "max_tokens": 9, "messages": messages, "extra_body": {"thread": thread}}
    with pytest.raises(anthropic.NotFoundError, match="waits for these results") as caught:
        await client.messages.create(**sent)
    assert caught.value.error_code == "thread_already_continued"


async def test_tokens_are_counted_by_the_provider_or_estimated(
    database_url: str, server: Server, client: AsyncAnthropic
) -> None:
    class Counting(ScriptedProvider):
        async def count(self, request: ModelRequest) -> int:
            counted.append(request)
            return 42

    counted: list[ModelRequest] = []
    data = b64encode(PIXEL).decode()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    sent: Any = {
        "messages": [
            user([picture, {"type": "text", "text": "Hi"}]),
            assistant([thought, call]),
            user([result("c1", "x")]),
        ],
        "system": "Be brief.",
        "tools": [LOOK],
    }
    short = await client.messages.count_tokens(model="plain", messages=[user("Hi")], tools=[])
    long = await client.messages.count_tokens(model="plain", **sent)
    assert 0 < short.input_tokens < long.input_tokens
    async with (
        serving(database_url, offers=[ProviderModels(Counting(()), ["counted"])]) as other,
        AsyncAnthropic(base_url=other.url, api_key="none", max_retries=0) as its_client,
    ):
        assert (await its_client.messages.count_tokens(model="counted", **sent)).input_tokens == 42
    (request,) = counted
    assert [[block.type for block in message.blocks] for message in request.messages] == [
        ["image", "text"],
        ["thinking", "tool_use"],
        ["tool_result"],
    ]
    body = json.loads(render_count(request))
    assert body["messages"][0]["content"][0] == picture
    assert body["messages"][1]["content"] == [thought, call]
    assert (body["system"][0]["text"], body["tools"][0]["name"]) == ("Be brief.", "look")


async def test_results_with_other_tools_get_an_answer_with_these(
    server: Server, api: Client, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("look", {}, "c1")), message_of(text("Blue.")))
    messages = [user("Colour?")]
    made = await client.messages.create(model=model, max_tokens=9, messages=messages, tools=[LOOK])
    messages += [assistant(made.content), user([result("c1", "water")])]
    more: Any = [LOOK, {**LOOK, "name": "listen"}]
    made = await client.messages.create(model=model, max_tokens=9, messages=messages, tools=more)
    assert made.content[0].to_dict()["text"] == "Blue."
    assert [tool.name for tool in provider.requests[1].tools] == ["look", "listen"]
    assert [[block.type for block in message.blocks] for message in provider.requests[1].messages] == [
        ["text"],
        ["tool_use"],
        ["tool_result"],
    ]
    assert (await api.json("GET", "/api/waiting"))["calls"] == []


async def test_results_with_the_same_credentials_continue_the_turn(database_url: str) -> None:
    """The turn's rows have the credentials encrypted, and the new request has them in plain text."""
    provider = ScriptedProvider([message_of(tool_use("look", {}, "c1")), message_of(text("Blue."))])
    parameters = (*COMMON, *(each for each in PARAMETERS if each.name == "mcp_servers"))
    offers = [ProviderModels(provider, ["m"], (), parameters)]
    servers = [{"type": "url", "url": "https://crm.test/mcp", "name": "crm", "authorization_token": "tok"}]
    async with serving(database_url, offers=offers, master_key=new_master_key(), params_allow="mcp_servers") as server:
        key = await server.token("ada")
        async with AsyncAnthropic(base_url=server.url, api_key=key, max_retries=0) as client:
            given: Any = {"model": "m", "max_tokens": 9, "tools": [LOOK], "extra_body": {"mcp_servers": servers}}
            made = await client.messages.create(messages=[user("Colour?")], **given)
            messages = [user("Colour?"), assistant(made.content), user([result("c1", "water")])]
            made = await client.messages.create(messages=messages, **given)
            assert made.content[0].to_dict()["text"] == "Blue."
        rows = await rows_of(database_url)
    assert len(rows["turns"]) == 2
    assert SEALED in json.dumps(rows["turns"])
    assert [request.params["mcp_servers"] for request in provider.requests] == [servers, servers]


async def test_members_of_tools_and_tools_that_anthropic_defines_reach_its_models(
    server: Server, client: AsyncAnthropic
) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("bash", {"command": "ls"}, "c1")))
    bash: Any = {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}}
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    tools = [{**LOOK, "strict": True, "eager_input_streaming": True}, bash, search]
    made = await client.messages.create(model=model, max_tokens=9, messages=[user("List.")], tools=tools)
    assert made.stop_reason == "tool_use"
    assert json.loads(render(provider.requests[0]))["tools"] == [
        {**LOOK, "strict": True},
        {"type": "bash_20250124", "name": "bash"},
        {**search, "cache_control": {"type": "ephemeral"}},
    ]


async def test_the_stop_reason_has_the_details_of_the_provider(server: Server, client: AsyncAnthropic) -> None:
    ends = [
        MessageDelta("stop_sequence", {}, '{"stop_sequence":"END"}'),
        MessageDelta("refusal", {}, '{"stop_details":{"type":"refusal","category":"cyber"}}'),
    ]
    model = server.scripts.model(*([*list(message_of(text("No")))[:-1], (end, MessageEnded())] for end in ends))
    sent: Any = {"model": model, "max_tokens": 9, "messages": [user("Hi")], "stop_sequences": ["END"]}
    made = await client.messages.create(**sent)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "END")
    async with client.messages.stream(**sent) as stream:
        streamed = await stream.get_final_message()
    assert streamed.stop_details is not None
    assert (streamed.stop_reason, streamed.stop_details.category) == ("refusal", "cyber")


async def test_a_message_pauses_where_a_tool_of_the_server_waits_for_an_approval(database_url: str) -> None:
    @tool(approval="always")
    async def send_mail(to: str) -> str:
        """Sends a mail."""
        return f"sent to {to}"

    async with serving(database_url, Toolset([send_mail])) as server, Client(server.url) as api:
        model = server.scripts.model(
            message_of(text("May I?"), tool_use("send_mail", {"to": "ada"}, "m1")), message_of(text("Done."))
        )
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            made = await client.messages.create(model=model, max_tokens=9, messages=[user("Mail.")])
        assert (made.stop_reason, [block.type for block in made.content]) == ("pause_turn", ["text"])
        (waiting,) = (await api.json("GET", "/api/waiting"))["calls"]
        assert waiting["tool_use_id"] == "m1"


async def test_a_model_for_side_tasks_leaves_no_chat(server: Server, api: Client, client: AsyncAnthropic) -> None:
    call = tool_use("look", {"at": "sky"}, "toolu_1")
    replies = iter([text("A title"), text("A title"), call, text("Blue."), text("Kept.")])
    provider = ScriptedProvider(lambda _: message_of(next(replies)))
    server.scripts.offers.append(ProviderModels(provider, [Model("side-messages", stores=False)]))
    given: Any = {"model": "side-messages", "max_tokens": 100}
    made = await client.messages.create(**given, messages=[user("Name it.")])
    assert made.content[0].to_dict()["text"] == "A title"
    async with client.messages.stream(**given, messages=[user("Name it.")]) as stream:
        assert await stream.get_final_text() == "A title"
    assert await chats_of(api) == []
    asked = [user("Look.")]
    called = await client.messages.create(**given, messages=asked, tools=[LOOK])
    assert called.stop_reason == "tool_use"
    assert len(await chats_of(api)) == 1, "it waits for the result"
    asked += [assistant(called.to_dict()["content"]), user([result("toolu_1", "blue")])]
    assert (await client.messages.create(**given, messages=asked, tools=[LOOK])).content[0].to_dict()["text"] == "Blue."
    assert await chats_of(api) == []
    await client.beta.messages.create(**given, messages=[user("Stay.")], extra_body={"thread": {"type": "create"}})
    assert len(await chats_of(api)) == 1, "its client goes on with the thread"

"""The AI SDK's protocol, chunk by chunk. The tests in tests/node decode the protocol with the AI SDK's packages."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from turnstream.api.codec import to_json
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.cursor import START
from turnstream.domain.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    Reset,
    RoundStart,
    TurnStart,
    preliminary_notice,
)
from turnstream.domain.log import marks_of
from turnstream.domain.results import layout_of
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnError
from turnstream.extensions.ai_sdk.chunks import UiEncoder
from turnstream.extensions.ai_sdk.messages import past_items, ui_message
from turnstream.extensions.ai_sdk.schemas import UiMessageIn
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.histories import PastResult
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import Detached, PersonQuestion, ToolContext, tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
CHAT = "/api/ai-sdk/chat"
LOCATE = {"type": "client", "name": "locate", "description": "Where?", "input_schema": {"type": "object"}}
AGE = Statement("UPDATE turns SET ended_at = ended_at - interval '2 minutes' WHERE id = :turn RETURNING id")


def user(words: str, id: str = "") -> Json:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": words}]}


def chunks_in(body: bytes) -> list[Json]:
    *frames, rest = body.replace(b"retry: 1000\n\n", b"").split(b"\n\n")
    assert rest == b""
    data = [frame.removeprefix(b"data: ") for frame in frames if frame.startswith(b"data: ")]
    return [json.loads(each) for each in data if each != b"[DONE]"]


def told_of(chunks: Sequence[Json]) -> list[str]:
    return [chunk["type"] for chunk in chunks if not chunk.get("transient")]


async def talk(api: Client, id: str, *messages: Json, expect: int = 200, **body: Any) -> list[Json]:
    answer = await api.post(CHAT, json={"id": id, "messages": messages, **body})
    assert answer.status_code == expect, answer.text
    if expect != 200:
        return [answer.json()]
    assert answer.content.endswith(b"data: [DONE]\n\n")
    return chunks_in(answer.content)


async def messages_of(api: Client, id: str) -> list[Json]:
    messages: list[Json] = (await api.json("GET", f"{CHAT}/{id}"))["messages"]
    return messages


async def test_an_answer_streams_in_the_words_of_the_sdk(api: Client) -> None:
    async with api.stream("POST", CHAT, json={"id": "mine", "messages": [user("Hi")]}) as answer:
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store, no-transform"
        chunks = chunks_in(await answer.aread())
    assert list(dict.fromkeys(told_of(chunks))) == [
        *("start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"),
    ]
    stored = await messages_of(api, "mine")
    assert chunks[0]["messageId"] == stored[1]["id"]
    assert chunks[-1]["finishReason"] == "stop"
    assert chunks[0]["messageMetadata"] | chunks[-1]["messageMetadata"] == stored[1]["metadata"]


async def test_a_chat_of_ours_is_known_by_its_id_and_any_other_id_leads_to_one_chat(
    api: Client, new_owner: NewOwner
) -> None:
    ours = await api.chat(title="Ships")
    await talk(api, ours.rpartition("/")[2], user("Hi"))
    assert len((await api.json("GET", f"{ours}/turns"))["turns"]) == 2
    (start, *_), (again, *_) = await talk(api, "x", user("Hi")), await talk(api, "x", user("Again"))
    assert start["messageMetadata"]["chat"] == again["messageMetadata"]["chat"]
    assert (await api.json("GET", f"/api/chats/{start['messageMetadata']['chat']}"))["title"] == "Hi"
    theirs = await new_owner()
    (other, *_) = await talk(theirs, "x", user("Hi"))
    assert other["messageMetadata"]["chat"] != start["messageMetadata"]["chat"]
    (stolen, *_) = await talk(theirs, ours.rpartition("/")[2], user("Hi"))
    assert stolen["messageMetadata"]["chat"] != ours.rpartition("/")[2]


async def test_a_message_that_is_sent_twice_is_stored_once(api: Client) -> None:
    first = await talk(api, "twice", user("Hi", "m1"))
    second = await talk(api, "twice", user("Hi", "m1"))
    assert first[0]["messageId"] == second[0]["messageId"]
    assert len(await messages_of(api, "twice")) == 2


async def test_a_message_follows_the_last_answer_before_it(api: Client) -> None:
    first = (await talk(api, "path", user("One", "m1")))[0]["messageId"]
    answered = {"id": first, "role": "assistant", "parts": []}
    second = (await talk(api, "path", user("One", "m1"), answered, user("Two", "m2")))[0]["messageMetadata"]["parent"]
    beside = (await talk(api, "path", user("One", "m1"), answered, user("Three", "m2")))[0]["messageMetadata"]["parent"]
    chat = (await api.json("GET", f"{CHAT}/path"))["id"]
    parents = [(await api.json("GET", f"/api/chats/{chat}/turns/{turn}"))["parent_id"] for turn in (second, beside)]
    assert parents == [first, first]
    root = (await talk(api, "path", user("Edited", "m1"), messageId="m1"))[0]["messageMetadata"]["parent"]
    assert (await api.json("GET", f"/api/chats/{chat}/turns/{root}"))["parent_id"] is None


async def test_an_app_may_send_the_last_message_alone(api: Client) -> None:
    for words in ("One", "Two"):
        answer = await api.post(CHAT, json={"id": "last", "message": user(words)})
        assert answer.status_code == 200
    assert [len(message["parts"]) for message in await messages_of(api, "last")] == [1, 2, 1, 2]


async def test_regenerate_answers_the_message_that_is_named_or_the_last(api: Client) -> None:
    first = (await talk(api, "again", user("One", "m1")))[0]["messageId"]
    second = (await talk(api, "again", user("One", "m1"), trigger="regenerate-message"))[0]["messageId"]
    third = (await talk(api, "again", user("One"), trigger="regenerate-message", messageId=first))[0]["messageId"]
    chat = (await api.json("GET", f"{CHAT}/again"))["id"]
    siblings = (await api.json("GET", f"/api/chats/{chat}/turns/{first}/siblings"))["turns"]
    assert [turn["id"] for turn in siblings] == [first, second, third]
    said = (await messages_of(api, "again"))[0]
    loaded = await talk(api, "again", {**said, "metadata": {}}, trigger="regenerate-message")
    assert loaded[0]["messageMetadata"]["parent"] == said["id"]


async def test_resume_tells_from_the_beginning_while_the_turn_runs_or_has_only_just_ended(
    api: Client, server: Server
) -> None:
    pause = Pause()
    body = {
        "id": "resume",
        "messages": [user("Hi")],
        "turnstream": {"model": server.scripts.model(pausing(pause, "A", "B"))},
    }
    async with api.stream("POST", CHAT, json=body) as answer:
        async for data in answer.aiter_bytes():
            if b'"A"' in data:
                break
    async with api.stream("GET", f"{CHAT}/resume/stream") as answer:
        pause.go.set()
        whole = chunks_in(await answer.aread())
    assert told_of(whole)[0] == "start"
    assert told_of(whole)[-1] == "finish"
    again = await api.get(f"{CHAT}/resume/stream")
    assert told_of(chunks_in(again.content))[-1] == "finish"
    await server.services.storage.database.row(AGE, turn=UUID(whole[0]["messageId"]))
    assert (await api.get(f"{CHAT}/resume/stream")).status_code == 204
    assert (await api.get(f"{CHAT}/never/stream")).status_code == 204


async def test_a_question_of_a_job_is_a_part_of_the_stream_and_its_answer_continues_the_turn(
    shared_database_url: str,
) -> None:
    form = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'

    @tool(background=True)
    async def pilot(context: ToolContext) -> str | Detached:
        """Sends a pilot, whom the person names."""
        if context.handle is None:
            return Detached("asked", question=PersonQuestion("Which pilot?", 600, form))
        answer = context.answer
        return "No pilot came." if answer is None or answer.content is None else f"{answer.content['name']} came."

    id = str(uuid4())
    async with serving(shared_database_url, Toolset([pilot])) as server, Client(server.url) as api:
        model = server.scripts.model(message_of(tool_use("pilot", {}, "p")), message_of(text("Thanks.")))
        chunks = await talk(api, id, user("A pilot!"), turnstream={"model": model})
        (question,) = [chunk for chunk in chunks if chunk["type"] == "data-question"]
        assert (question["id"], question["transient"], question["data"]["message"]) == ("p", True, "Which pilot?")
        assert question["data"]["schema"] == json.loads(form)
        assert (chunks[-1]["type"], chunks[-1]["messageMetadata"]["status"]) == ("finish", "waiting")
        start = chunks[0]
        turn = f"/api/chats/{start['messageMetadata']['chat']}/turns/{start['messageId']}"
        ids = {"tool_use_id": "p", "input_digest": question["data"]["input_digest"]}
        answered = {"type": "answer", **ids, "action": "accept", "content": {"name": "Ada"}}
        await api.json("POST", f"{turn}/actions", 202, json={"actions": [answered]})
        rest = chunks_in((await api.get(f"{CHAT}/{id}/stream")).content)
        assert [chunk["output"] for chunk in rest if chunk["type"] == "tool-output-available"] == ["Ada came."]
        assert [chunk for chunk in rest if chunk["type"] == "data-question"] == []
        assert "".join(chunk["delta"] for chunk in rest if chunk["type"] == "text-delta") == "Thanks."


async def test_stop_cancels_the_open_turns(api: Client, server: Server) -> None:
    pause = Pause()
    body = {
        "id": "stop",
        "messages": [user("Hi")],
        "turnstream": {"model": server.scripts.model(pausing(pause, "A", "B"))},
    }
    async with api.stream("POST", CHAT, json=body) as answer:
        await pause.reached.wait()
        stopped = (await api.json("POST", f"{CHAT}/stop/stop"))["stopped"]
        chunks = chunks_in(await answer.aread())
    assert stopped == [chunks[0]["messageId"]]
    assert told_of(chunks)[-2:] == ["abort", "finish"]
    assert (await api.json("POST", f"{CHAT}/stop/stop"))["stopped"] == []


async def test_an_answer_that_another_client_gave_is_accepted_again(api: Client, server: Server) -> None:
    model = server.scripts.model(message_of(tool_use("locate", {}, "l1")), message_of(text("There.")))
    asked = await talk(api, "late", user("Hi"), turnstream={"model": model, "tools": [LOCATE]})
    assert asked[-1] == {"type": "finish", "finishReason": "tool-calls", "messageMetadata": {"status": "waiting"}}
    turn = asked[0]["messageId"]
    part = {"type": "tool-locate", "toolCallId": "l1", "state": "output-available", "input": {}, "output": {"a": 1}}
    answer = {"id": turn, "role": "assistant", "parts": [part]}
    for _ in range(2):
        chunks = await talk(api, "late", user("Hi"), answer)
        assert chunks[0] == {"type": "start", "messageId": turn}
        assert {"type": "tool-output-available", "toolCallId": "l1", "output": {"a": 1}} in chunks
        assert told_of(chunks)[-4:] == ["text-delta", "text-end", "finish-step", "finish"]
    nothing = await talk(api, "late", user("Hi"), {**answer, "parts": []})
    assert told_of(nothing)[-1] == "finish"


@pytest.mark.parametrize(
    "body",
    [
        {"id": "r"},
        {"id": "r", "messages": [user("")]},
        {"id": "r", "messages": [user("a\0b")]},
        {"id": "", "messages": [user("Hi")]},
        {"id": "r", "messages": [{"id": str(uuid4()), "role": "assistant", "parts": []}]},
        {"id": "r", "messages": [user("Hi")], "turnstream": {"model": "none"}},
        {"id": "r", "messages": [user("Hi")], "turnstream": {"modle": "none"}},
    ],
)
async def test_a_request_that_is_not_valid_is_refused_and_creates_no_chat(api: Client, body: Json) -> None:
    answer = await api.post(CHAT, json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"]
    assert (await api.get(f"{CHAT}/r")).status_code == 404


# --- the encoder -----------------------------------------------------------------------------------------------------


def block(index: int, type: str, text: str = "", data: Json | None = None, **members: Any) -> Block:
    return Block(index, 1, 1, type, text, to_json(data).decode() if data else None, **members)


def turn_of(*blocks: Block, status: Any = "complete", error: TurnError | None = None) -> Turn:
    one = Round(1, 1, 1, "end_turn", sealed_by=1)
    return Turn(
        UUID(int=1), UUID(int=2), UUID(int=3), "assistant", status, 1, error=error, rounds=(one,), blocks=blocks
    )


def encoded(turn: Turn, *events: Event | Notice) -> list[Json]:
    encoder = UiEncoder(turn, lambda: turn)
    return chunks_in(b"".join(encoder(event, START) for event in (events or marks_of(turn))))


async def test_a_block_that_the_sdk_does_not_have_is_sent_as_data() -> None:
    turn = turn_of(
        block(0, "user_text", "And fast!", notes='{"steer":"s"}'),
        block(1, "redacted_thinking", data={"type": "redacted_thinking", "data": "x"}),
    )
    data = [chunk for chunk in encoded(turn) if chunk["type"].startswith("data-")]
    assert data == [
        part for part in (await ui_message(turn, "/api/uploads/", Portions())).parts if part["type"] != "step-start"
    ]
    assert data == [
        {
            "type": "data-redacted-thinking",
            "id": "1",
            "data": {"text": "", "data": {"type": "redacted_thinking", "data": "x"}},
        },
        {"type": "data-user-text", "id": "0", "data": {"text": "And fast!", "notes": {"steer": "s"}}},
    ]


async def test_a_resumed_stream_knows_the_calls_before_the_wait() -> None:
    call = block(0, "server_tool_use", "{}", tool_use_id="s", name="web_search")
    late = block(1, "web_search_tool_result", data={"tool_use_id": "s", "content": [7]})
    turn = turn_of(call, late)
    encoder, marks = UiEncoder(turn, lambda: turn), marks_of(turn)
    stop = next(mark for mark in marks if isinstance(mark, BlockStop))
    place = list(marks).index(stop) + 1
    encoder.resumed(marks[:place])
    chunks = chunks_in(b"".join(encoder(mark, START) for mark in marks[place:]))
    output = {"type": "tool-output-available", "toolCallId": "s", "output": [7], "providerExecuted": True}
    assert output in chunks


async def test_a_result_with_files_is_its_parts() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    turn = turn_of(
        block(0, "tool_use", "{}", tool_use_id="a", name="look"),
        replace(block(1, "tool_result", "[Seen]", tool_use_id="a", name="look"), data=layout_of(["[Seen]", picture])),
    )
    output = {"content": [{"type": "text", "text": "[Seen]"}, picture]}
    (told,) = (chunk for chunk in encoded(turn) if chunk["type"] == "tool-output-available")
    assert told["output"] == output
    assert (await ui_message(turn, "/api/uploads/", Portions())).parts[1]["output"] == output


async def test_data_for_clients_is_a_part_beside_the_result() -> None:
    call = block(0, "tool_use", "{}", tool_use_id="t1", name="look")
    result = replace(block(1, "tool_result", "Seen.", tool_use_id="t1", name="look"), client_data='{"rows":[1]}')
    turn = turn_of(call, result)
    part = {"type": "data-tool-data", "id": "t1", "data": {"name": "look", "data": {"rows": [1]}}}
    assert [chunk for chunk in encoded(turn) if chunk["type"] == "data-tool-data"] == [part]
    assert (await ui_message(turn, "/api/uploads/", Portions())).parts[2] == part


async def test_a_result_with_an_app_is_as_the_sdk_has_that_of_its_own_mcp_client() -> None:
    data = {"structuredContent": {"rows": [1]}, "ui": {"server": "apps", "resourceUri": "ui://apps/chart"}}
    call = block(0, "tool_use", "{}", tool_use_id="t1", name="look")
    result = block(1, "tool_result", "Seen.", tool_use_id="t1", name="look")
    turn = turn_of(call, replace(result, client_data=json.dumps(data)))
    app = {"resourceUri": "ui://apps/chart", "mimeType": "text/html;profile=mcp-app", "server": "apps"}
    output = {"content": [{"type": "text", "text": "Seen."}], "structuredContent": {"rows": [1]}, "isError": False}
    (chunk,) = (chunk for chunk in encoded(turn) if chunk["type"] == "tool-output-available")
    assert (chunk["output"], chunk["toolMetadata"]) == (output, {"app": app})
    part = (await ui_message(turn, "/api/uploads/", Portions())).parts[1]
    assert (part["output"], part["toolMetadata"], part["state"]) == (output, {"app": app}, "output-available")
    # If a client sends the part back in its history, the model receives only the text of the result.
    (_, past) = past_items([UiMessageIn(id="m", role="assistant", parts=[part])])
    assert isinstance(past, PastResult)
    assert past.text == "Seen."


async def test_the_state_of_a_running_tool_is_a_preliminary_output() -> None:
    turn = turn_of(block(0, "tool_use", "{}", tool_use_id="t1", name="look"))
    output = PreliminaryOutput(1, "t1", "look", '{"found":1}')
    (chunk,) = encoded(turn_of(), preliminary_notice(output))
    shown = {"output": {"found": 1}, "preliminary": True}
    assert chunk == {"type": "tool-output-available", "toolCallId": "t1", "providerExecuted": True, **shown}
    running = replace(turn, preliminary=(output, replace(output, tool_use_id="unknown")))
    part = (await ui_message(running, "/api/uploads/", Portions())).parts[1]
    assert part.items() >= {**shown, "state": "output-available"}.items()


async def test_citations_are_sources_and_tools_of_the_provider_have_their_results() -> None:
    web = {"type": "web_search_result_location", "url": "https://a.example/", "title": "A"}
    page = {"type": "page_location", "start_page_number": 1}
    evil = {"type": "web_search_result_location", "url": "javascript:alert(1)", "title": "B"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "https://a.example/"}]}
    turn = turn_of(
        block(0, "server_tool_use", '{"query":"a"}', tool_use_id="s1", name="web_search"),
        block(1, "web_search_tool_result", data=result),
        block(2, "text", "So.", data={"type": "text", "text": "", "citations": [web, page, evil]}),
    )
    chunks = encoded(turn)
    assert {"type": "source-url", "sourceId": "2.0", "url": "https://a.example/", "title": "A"} in chunks
    assert [chunk["data"] for chunk in chunks if chunk["type"] == "data-citation"] == [page, evil]
    (output,) = (chunk for chunk in chunks if chunk["type"] == "tool-output-available")
    assert (output["toolCallId"], output["output"]) == ("s1", [{"url": "https://a.example/"}])
    parts = (await ui_message(turn, "/api/uploads/", Portions())).parts
    assert [part["type"] for part in parts] == [
        *("step-start", "tool-web_search", "text", "source-url", "data-citation", "data-citation"),
    ]
    assert parts[1]["state"] == "output-available"


async def test_after_a_reset_the_valid_parts_of_the_step_are_sent_again() -> None:
    turn = turn_of()
    kept = block(0, "text", "Kept.")
    begun = (TurnStart(0, turn.id, turn.chat_id, "m", 1, "running"), RoundStart(1, 1, 1, ()))
    first = (BlockStart(1, 0, 1, "text", None, None), BlockDelta(0, 0, "Kept."), BlockStop(1, kept))
    second = (BlockStart(1, 1, 1, "text", None, None), BlockDelta(1, 0, "Gone"))
    part = encoded(turn, *begun, *first, *second, Reset(2, 1), BlockStart(2, 1, 1, "text", None, None))
    assert told_of(part)[-5:] == ["reset-step", "text-start", "text-delta", "text-end", "text-start"]
    assert part[-3]["delta"] == "Kept."
    whole = encoded(turn, *begun, *first, *second, Reset(2, 0), RoundStart(2, 1, 1, ()), *first)
    assert told_of(whole)[-4:] == ["reset-step", "text-start", "text-delta", "text-end"]


async def test_an_error_is_the_last_word() -> None:
    turn = turn_of(status="error", error=TurnError("overloaded_error", "Later."))
    chunks = encoded(turn)
    assert chunks[-1] == {"type": "error", "errorText": "Later."}
    assert chunks[-2]["messageMetadata"]["error"] == {"type": "overloaded_error", "message": "Later."}
    assert (await ui_message(turn, "/api/uploads/", Portions())).metadata["error"] == {
        "type": "overloaded_error",
        "message": "Later.",
    }


async def test_notices_are_data_that_passes_by() -> None:
    (chunk,) = encoded(turn_of(), Notice("tool_progress", {"message": "half"}))
    assert chunk == {"type": "data-tool-progress", "data": {"message": "half"}, "transient": True}


async def test_a_call_that_was_cut_off_is_an_error_of_its_input() -> None:
    turn = turn_of(block(0, "tool_use", '{"a', tool_use_id="c", name="n", interrupted=True), status="cancelled")
    (chunk,) = (chunk for chunk in encoded(turn) if chunk["type"] == "tool-input-error")
    assert (chunk["input"], chunk["errorText"]) == ('{"a', "interrupted")
    assert (await ui_message(turn, "/api/uploads/", Portions())).parts[1]["state"] == "output-error"


async def test_the_transport_of_assistant_ui_brings_instructions_and_tools_of_its_page(
    api: Client, server: Server
) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("locate", {}, "c")), message_of(text("Yes.")))
    tools = {"locate": {"parameters": {"type": "object"}}}
    options = {"model": model, "tools": []}
    body = {"id": "aui", "messages": [user("Where?", "m1")], "turnstream": options, "config": {}, "callSettings": None}
    async with api.stream("POST", CHAT, json={**body, "tools": tools, "system": "Be brief."}) as answer:
        chunks = chunks_in(await answer.aread())
        resumable = answer.headers["x-resumable-stream-id"]
    assert "tool-input-available" in told_of(chunks)
    assert provider.requests[0].system == "Be brief."
    assert [(each.name, each.description) for each in provider.requests[0].tools] == [("locate", "locate")]
    async with api.stream("GET", f"{CHAT}/{resumable}/stream") as resumed:
        assert resumed.status_code == 200
        assert resumed.headers["x-resumable-stream-id"] == resumable
        await resumed.aread()
    answered = {"id": chunks[0]["messageId"], "role": "assistant", "parts": []}
    await talk(api, "aui", user("Where?", "m1"), answered, user("Sure?"), tools={}, turnstream={"model": model})
    assert "locate" not in {each.name for each in provider.requests[-1].tools}, "the page has taken it away"


async def test_the_output_of_a_structured_turn_is_in_its_metadata(api: Client, server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = server.scripts.model(message_of(tool_use("output", {"n": 7}, "o")))
    chunks = await talk(api, "structured", user("Go"), turnstream={"model": model, "output": {"schema": schema}})
    assert chunks[-1]["messageMetadata"]["output"] == {"n": 7}
    assert (await messages_of(api, "structured"))[-1]["metadata"]["output"] == {"n": 7}


async def test_a_chat_that_begins_with_messages_of_its_client_has_them(server: Server, api: Client) -> None:
    model, provider = server.scripts.provider(message_of(text("Blue.")), message_of(text("Yes.")))
    look = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {"at": "sea"}, "output": "x"}
    parts = [{"type": "text", "text": "I look."}, look, {"type": "text", "text": "Water."}]
    seed = [user("Hello?", "m1"), {"id": "m2", "role": "assistant", "parts": parts}]
    id, options = str(uuid4()), {"model": model}
    await talk(api, id, *seed, user("Which colour?", "m3"), turnstream=options)
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[0].messages]
    assert sent == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    stored = await messages_of(api, id)
    assert [message["role"] for message in stored] == ["user", "assistant", "user", "assistant"]
    await talk(api, id, *seed, user("Which colour?", "m3"), stored[-1], user("Sure?", "m4"), turnstream=options)
    assert len(provider.requests[1].messages) == 7
    assert len(await messages_of(api, id)) == 6


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "\0"},
        {"type": "tool-look", "toolCallId": "c", "state": "output-available", "input": {}, "output": "\0"},
        {"type": "tool-look", "toolCallId": "\0", "state": "output-available", "input": {}, "output": ""},
        {"type": "dynamic-tool", "toolName": "\0", "toolCallId": "c", "state": "output-available", "output": ""},
    ],
    ids=["text", "output", "id", "name"],
)
async def test_unstorable_text_is_refused_in_a_history(api: Client, part: Json) -> None:
    seed = {"id": "a", "role": "assistant", "parts": [part]}
    (refusal,) = await talk(api, str(uuid4()), seed, user("Moin"), expect=422)
    assert "a NUL character at offset 0" in refusal["detail"]


LOOK = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {"at": "sea"}, "output": "x"}


async def test_an_answer_continues_from_results_of_an_unknown_chat(server: Server, api: Client) -> None:
    model, provider = server.scripts.provider(message_of(text("Blue.")), message_of(text("Yes.")))
    id, options = str(uuid4()), {"model": model}
    begun = [user("Which colour?", "m1"), {"id": "m2", "role": "assistant", "parts": [LOOK]}]
    chunks = await talk(api, id, *begun, turnstream=options)
    assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta") == "Blue."
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[0].messages]
    assert sent == [("user", ["text"]), ("assistant", ["tool_use"]), ("user", ["tool_result"])]
    await talk(api, id, *begun, turnstream=options)  # the client retries after it has lost the response
    stored = await messages_of(api, id)
    assert [message["role"] for message in stored] == ["user", "assistant", "assistant"]
    await talk(api, id, *begun, stored[-1], user("Sure?", "m4"), turnstream=options)
    assert len(provider.requests) == 2


async def test_an_answer_continues_from_results_of_unknown_calls_behind_the_last_known_answer(
    server: Server, api: Client
) -> None:
    model, provider = server.scripts.provider(*(message_of(text(words)) for words in ("Hi.", "Blue.", "Green.")))
    id, options = str(uuid4()), {"model": model}
    await talk(api, id, user("Hello?", "m1"), turnstream=options)
    known = await messages_of(api, id)
    edited = [*known, user("Which colour?", "m2"), {"id": "m3", "role": "assistant", "parts": [LOOK]}]
    await talk(api, id, *edited, turnstream=options)
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[1].messages]
    pair = [("assistant", ["tool_use"]), ("user", ["tool_result"])]
    assert sent == [("user", ["text"]), ("assistant", ["text"]), ("user", ["text"]), *pair]
    assert [message["role"] for message in await messages_of(api, id)] == ["user", "assistant"] * 2 + ["assistant"]
    compacted = [user("About the sea.", "s"), {"id": "m9", "role": "assistant", "parts": [LOOK]}]
    await talk(api, id, *compacted, turnstream=options)
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[2].messages]
    assert sent == [("user", ["text"]), *pair]
    assert [message["role"] for message in await messages_of(api, id)] == ["user", "assistant", "assistant"]


async def test_messages_that_a_known_chat_lacks_are_recorded_before_the_next_one(server: Server, api: Client) -> None:
    model, provider = server.scripts.provider(*(message_of(text(words)) for words in ("Hi.", "Blue.", "Yes.")))
    id, options = str(uuid4()), {"model": model}
    await talk(api, id, user("Hello?", "m1"), turnstream=options)
    known = await messages_of(api, id)
    seen = {"id": "m3", "role": "assistant", "parts": [LOOK, {"type": "text", "text": "Seen."}]}
    asked = [*known, user("Look!", "m2"), seen, user("Which colour?", "m4")]
    await talk(api, id, *asked, turnstream=options)
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[1].messages]
    assert sent == [
        ("user", ["text"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    stored = await messages_of(api, id)
    assert [message["role"] for message in stored] == ["user", "assistant"] * 3
    await talk(api, id, *asked, turnstream=options)  # the client retries after it has lost the response
    assert len(provider.requests) == 2
    await talk(api, id, *asked, stored[-1], user("Sure?", "m5"), turnstream=options)
    assert len(await messages_of(api, id)) == 8, "nothing is recorded twice"


async def test_messages_of_the_user_that_wait_are_not_recorded_again(server: Server, api: Client) -> None:
    model, provider = server.scripts.provider(message_of(text("Hi.")), message_of(text("Blue.")))
    id, options = str(uuid4()), {"model": model}
    await talk(api, id, user("Hello?", "m1"), turnstream=options)
    known = await messages_of(api, id)
    await talk(api, id, *known, user("Never answered for this client", "m2"), user("Sure?", "m3"), turnstream=options)
    assert [message["role"] for message in await messages_of(api, id)] == ["user", "assistant"] * 2
    assert len(provider.requests[1].messages) == 3


@pytest.mark.parametrize(
    "parts",
    [[{**LOOK, "state": "input-available"}], [LOOK, {**LOOK, "toolCallId": "c2", "state": "input-available"}]],
    ids=["none", "one of two"],
)
async def test_a_history_whose_calls_lack_results_is_refused(api: Client, parts: list[Json]) -> None:
    asked = {"id": "m2", "role": "assistant", "parts": parts}
    (refusal,) = await talk(api, str(uuid4()), user("Go", "m1"), asked, expect=422)
    assert refusal["errors"][0]["field"] == "messages"
    (refusal,) = await talk(api, str(uuid4()), {"id": "m2", "role": "assistant", "parts": []}, expect=422)
    assert "must end with a user message" in refusal["detail"]


async def test_a_token_for_messages_alone_is_enough_for_a_page_with_a_greeting(server: Server, api: Client) -> None:
    greeting = {"id": "g", "role": "assistant", "parts": [{"type": "text", "text": "How can I help?"}]}
    sending = {"Authorization": f"Bearer {await server.token(api.owner, 'send', 'read')}"}
    answer = await api.post(
        CHAT, json={"id": str(uuid4()), "messages": [greeting, user("Moin", "m1")]}, headers=sending
    )
    assert answer.status_code == 200, answer.text
    forged = [greeting, {"id": "f", "role": "assistant", "parts": [LOOK]}, user("Moin", "m1")]
    answer = await api.post(CHAT, json={"id": str(uuid4()), "messages": forged}, headers=sending)
    assert answer.status_code == 403

"""The AI SDK's own packages, in Node, against the real server: their messages equal the stored messages."""

from uuid import uuid4

import pytest

from tests.node.conftest import SEA, Json, Page, ScriptServer

pytestmark = [pytest.mark.extensions("ai_sdk"), pytest.mark.asyncio(loop_scope="module")]


def parts_of(state: Json) -> list[Json]:
    parts: list[Json] = state["messages"][-1]["parts"]
    return parts


def text_of(state: Json) -> str:
    return "".join(part["text"] for part in parts_of(state) if part["type"] == "text")


def types_of(state: Json) -> list[str]:
    return [part["type"] for part in parts_of(state)]


def tool(state: Json, name: str) -> Json:
    return next(part for part in parts_of(state) if part["type"] == f"tool-{name}")


async def test_a_conversation_with_tools_that_run_on_the_server(page: Page) -> None:
    await page.open()
    state = await page("send", text="tools")
    assert state["status"] == "ready", state["error"]
    assert types_of(state) == [
        *("step-start", "reasoning", "text", "tool-weather", "tool-explode"),
        *("step-start", "text"),
    ]
    assert tool(state, "weather")["output"] == {"city": "Zürich", "degrees": 12}
    assert tool(state, "explode")["state"] == "output-error"
    assert state["messages"][-1]["metadata"]["usage"]["output_tokens"] == 10
    assert state["seen"]["toolCalls"] == []
    assert "data-status" in state["seen"]["transient"]
    state = await page("send", text="plain")
    assert [part["text"] for part in parts_of(state) if part["type"] == "text"] == ["That is it."]
    await page.assert_shows_what_is_stored()


async def test_an_output_has_its_schema(page: Page) -> None:
    await page.open()
    state = await page("send", text="structured", more={"output": {"schema": SEA}})
    assert state["messages"][-1]["metadata"]["output"] == {"sea": "North"}
    await page.assert_shows_what_is_stored()


LOOK = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {"at": "sea"}, "output": "blue"}
SEEDS: list[list[tuple[str, list[Json]]]] = [
    [("assistant", [{"type": "text", "text": "How can I help?"}])],
    [("user", [{"type": "text", "text": "Moin"}]), ("assistant", [{"type": "text", "text": "Ahoy."}])],
    [("user", [{"type": "text", "text": "Colour?"}]), ("assistant", [LOOK, {"type": "text", "text": "Blue."}])],
]
RECALLED = [
    "text … / text How can I help?",
    "text Moin / text Ahoy.",
    'text Colour? / tool_use {"at":"sea"} / tool_result blue / text Blue.',
]


@pytest.mark.parametrize(
    ("seed", "recalled"), list(zip(SEEDS, RECALLED, strict=True)), ids=["greeting", "chat", "tools"]
)
async def test_the_model_gets_the_messages_that_a_page_begins_with(
    page: Page, seed: list[tuple[str, list[Json]]], recalled: str
) -> None:
    messages = [{"id": f"s{number}", "role": role, "parts": parts} for number, (role, parts) in enumerate(seed)]
    await page.open(messages)
    state = await page("send", text="recall")
    assert text_of(state) == f"{recalled} / text recall"
    first = state["messages"][-2]["id"]
    state = await page("send", text="recall")
    assert text_of(state) == f"{recalled} / text recall / text {recalled} / text recall / text recall"
    state = await page("send", text="plain, recall", messageId=first)
    assert len(state["messages"]) == len(seed) + 2
    assert [each["role"] for each in await page.stored()] == [each["role"] for each in state["messages"]]
    state = await page("send", text="recall")
    assert text_of(state).startswith(f"{recalled} / text plain, recall"), "the edited message is behind the first ones"


async def test_an_approval_is_asked_for_and_given(page: Page) -> None:
    await page.open()
    state = await page("send", text="mail")
    assert tool(state, "send_mail")["state"] == "approval-requested"
    assert state["messages"][-1]["metadata"]["status"] == "waiting"
    await page.assert_shows_what_is_stored()
    await page("approve", approved=True)
    state = await page("idle")
    assert tool(state, "send_mail")["output"] == "sent to ada"
    assert state["messages"][-1]["metadata"]["status"] == "complete"
    await page.assert_shows_what_is_stored()


async def test_an_approval_is_denied_with_a_reason(page: Page) -> None:
    await page.open()
    await page("send", text="mail")
    await page("approve", approved=False, reason="not now")
    state = await page("idle")
    assert tool(state, "send_mail")["state"] == "output-denied"
    assert types_of(state)[-1] == "text"
    await page.assert_shows_what_is_stored()


async def test_a_tool_that_the_page_runs(page: Page) -> None:
    await page.open()
    state = await page("send", text="where")
    assert state["seen"]["toolCalls"] == ["getLocation"]
    assert tool(state, "weather")["state"] == "output-available"
    assert tool(state, "getLocation")["state"] == "input-available"
    await page.assert_shows_what_is_stored()
    await page("output", tool="getLocation", output={"city": "Bern"})
    state = await page("idle")
    assert tool(state, "getLocation")["output"] == {"city": "Bern"}
    assert types_of(state)[-2:] == ["step-start", "text"]
    assert state["seen"]["finished"] == 2
    await page.assert_shows_what_is_stored()


async def test_a_tool_of_the_page_fails_and_an_approval_follows_in_the_same_turn(page: Page) -> None:
    await page.open()
    await page("send", text="both")
    await page("output", tool="getLocation", errorText="no permission")
    state = await page("idle")
    assert tool(state, "getLocation")["errorText"] == "no permission"
    assert tool(state, "send_mail")["state"] == "approval-requested"
    await page.assert_shows_what_is_stored()
    await page("approve", approved=True)
    state = await page("idle")
    assert types_of(state)[-1] == "text"
    await page.assert_shows_what_is_stored()


async def test_a_page_that_is_opened_while_a_turn_waits_can_answer(page: Page) -> None:
    await page.open()
    await page("send", text="mail")
    await page.open(messages=await page.stored())
    await page("approve", approved=True)
    state = await page("idle")
    assert tool(state, "send_mail")["output"] == "sent to ada"
    await page.assert_shows_what_is_stored()


async def test_stop_ends_the_turn_and_keeps_its_text(page: Page) -> None:
    await page.open()
    await page("begin", text="hang")
    await page("until", says="That ")
    await page.stop_server_side()
    await page("settled")
    state = await page("idle")
    assert state["status"] == "ready", state["error"]
    assert state["messages"][-1]["metadata"]["status"] == "cancelled"
    await page.assert_shows_what_is_stored()


async def test_after_stop_in_the_page_alone_the_next_message_ends_the_running_turn(page: Page) -> None:
    await page.open()
    await page("begin", text="hang")
    await page("until", says="That ")
    await page("stop")
    state = await page("send", text="plain")
    assert state["status"] == "ready", state["error"]
    stored = await page.stored()
    assert [message["metadata"].get("status") for message in stored] == [None, "cancelled", None, "complete"]
    assert parts_of(state) == stored[-1]["parts"]


async def test_regenerate_and_edit_are_siblings(page: Page) -> None:
    await page.open()
    first = (await page("send", text="plain"))["messages"]
    state = await page("regenerate")
    assert len(state["messages"]) == 2
    assert state["messages"][1]["id"] != first[1]["id"]
    await page.assert_shows_what_is_stored()
    state = await page("send", text="tools", messageId=state["messages"][0]["id"])
    assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
    await page.assert_shows_what_is_stored()


async def test_regenerate_ends_the_running_turn(page: Page) -> None:
    await page.open()
    await page("begin", text="hang once 2")
    await page("until", says="That ")
    await page("stop")
    state = await page("regenerate")
    assert state["status"] == "ready", state["error"]
    assert state["messages"][-1]["metadata"]["status"] == "complete"
    await page.assert_shows_what_is_stored()


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_page_resumes_after_the_process_that_held_its_connection_is_gone(
    page: Page, server: ScriptServer, end: str
) -> None:
    await page.open()
    await page("begin", text=f"hang once {end}")
    await page("until", says="That ")
    await getattr(server, end)()
    state = await page("settled")
    assert state["status"] == "error"
    await server.start()
    state = await page("resume")
    assert state["status"] == "ready", state["error"]
    assert "".join(part["text"] for part in parts_of(state) if part["type"] == "text") == "That is it."
    await page.assert_shows_what_is_stored()


async def test_a_page_resumes_on_another_replica_after_the_one_that_wrote_was_killed(
    page: Page, server: ScriptServer, replica: ScriptServer
) -> None:
    await page.open()
    await page("begin", text=f"hang once {uuid4()}")
    await page("until", says="That ")
    await replica.start()
    await server.kill()
    await page("settled")
    page.move(replica)
    await page.open(messages=await page.stored(), resume=True)
    await page("until", says="That is it.")
    assert (await page("ready"))["seen"]["errors"] == 0
    await page.assert_shows_what_is_stored()
    await server.start()
    await replica.terminate()


async def test_the_error_of_a_turn_is_that_of_the_page(page: Page) -> None:
    await page.open()
    state = await page("send", text="fail")
    assert (state["status"], state["error"]) == ("error", "It cannot be done.")
    await page.assert_shows_what_is_stored()


async def test_a_page_that_is_opened_while_a_turn_runs_resumes_it(page: Page) -> None:
    await page.open()
    await page("begin", text="hang")
    await page("until", says="That ")
    await page.open(messages=await page.stored(), resume=True)
    await page("until", says="That ")
    await page.stop_server_side()
    state = await page("idle")
    assert len(state["messages"]) == 2
    await page.assert_shows_what_is_stored()


async def test_with_nothing_to_resume_the_page_stays_as_it_is(page: Page) -> None:
    state = await page.open()
    state = await page("resume")
    assert (state["status"], state["messages"]) == ("ready", [])


async def test_with_the_functions_of_the_page_stop_reaches_the_server(page: Page) -> None:
    await page.open(documented=True)
    await page("begin", text="hang")
    await page("until", says="That ")
    await page("stop")
    await page.until_stored("cancelled")


async def test_with_the_functions_of_the_page_a_stream_that_another_replaces_stops_nothing(page: Page) -> None:
    await page.open(documented=True)
    await page("begin", text="hang")
    await page("until", says="That ")
    await page.open(messages=await page.stored(), resume=True, documented=True)
    await page("until", says="That ")
    assert (await page("replace"))["seen"]["stops"] == 0
    await page("stop")
    await page.until_stored("cancelled")


async def test_with_the_functions_of_the_page_it_comes_back_after_a_cut(page: Page, server: ScriptServer) -> None:
    await page.open(documented=True)
    await page("begin", text="hang once come back")
    await page("until", says="That ")
    await server.kill()
    await page("settled")
    await server.start()
    state = await page("ready")
    assert "".join(part["text"] for part in parts_of(state) if part["type"] == "text") == "That is it."
    await page.assert_shows_what_is_stored()

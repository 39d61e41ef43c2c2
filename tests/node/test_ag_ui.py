"""AG-UI's own client, in Node, against the real server: the messages of the client equal the stored messages."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.node.conftest import FOLDER, ROOT, SEA, Json, Page, Process, ScriptServer, process_of, shared

pytestmark = [pytest.mark.extensions("ag_ui"), pytest.mark.asyncio(loop_scope="module")]


class Agent(Page):
    async def open(self, messages: Any = None, **_: Any) -> Json:
        return await self("open", url=self._server.url, id=self._id, messages=messages or [])

    async def thread(self) -> Json:
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False) as client:
            answer = await client.get(f"/api/ag-ui/threads/{self._id}")
            assert answer.status_code == 200, answer.text
            thread: Json = answer.json()
            return thread

    async def assert_shows_what_is_stored(self) -> None:
        """Checks that the page shows the stored messages. It ignores the ids of messages that the page created."""
        shown, stored = self.state["messages"], (await self.thread())["messages"]
        assert [_without_own_id(message) for message in shown] == [_without_own_id(message) for message in stored]


def _without_own_id(message: Json) -> Json:
    own = message["role"] in {"user", "tool"}
    return {name: value for name, value in message.items() if name != "id" or not own}


@shared
async def agent_process(node: str) -> AsyncIterator[Process]:
    async with process_of(node, "agent.mjs") as process:
        yield process


@pytest.fixture
def agent(agent_process: Process, server: ScriptServer) -> Agent:
    return Agent(agent_process, server)


def roles_of(state: Json) -> list[str]:
    return [message["role"] for message in state["messages"]]


def text_of(state: Json) -> str:
    return "".join(each.get("content", "") for each in state["messages"] if each["role"] == "assistant")


async def test_a_run_with_reasoning_text_and_tools_of_the_server(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="tools")
    assert state["seen"].get("thrown") is None
    assert roles_of(state) == ["user", "reasoning", "assistant", "tool", "tool", "assistant"]
    call, broken = state["messages"][2]["toolCalls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city":"Zürich"}')
    result, failure = state["messages"][3:5]
    assert (result["toolCallId"], result["content"]) == (call["id"], '{"city":"Zürich","degrees":12}')
    assert (failure["toolCallId"], failure["metadata"]["is_error"]) == (broken["id"], True)
    events = state["seen"]["events"]
    assert events[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
    assert events.count("STEP_STARTED") == events.count("STEP_FINISHED") == 2
    assert events[-1] == "RUN_FINISHED"
    assert state["seen"]["outcome"] == "success"
    assert state["seen"]["usage"][0]["outputTokens"] == 10
    assert "turnstream.status" in state["seen"]["custom"]
    await agent.assert_shows_what_is_stored()
    state = await agent("send", text="plain")
    assert state["messages"][-1]["content"] == "That is it."
    await agent.assert_shows_what_is_stored()


async def test_an_approval_is_an_interrupt_that_is_answered_with_the_next_run(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="mail")
    (interrupt,) = state["pendingInterrupts"]
    assert state["seen"]["outcome"] == "interrupt"
    assert interrupt["toolCallId"] == state["messages"][-1]["toolCalls"][0]["id"]
    assert interrupt["responseSchema"]["required"] == ["approved"]
    assert (await agent.thread())["interrupts"] == [interrupt]
    state = await agent("decide", payload={"approved": True, "editedArgs": {"to": "bob"}})
    assert (state["seen"]["outcome"], state["pendingInterrupts"]) == ("success", [])
    (result,) = [each for each in state["messages"] if each["role"] == "tool"]
    assert result["content"].endswith("sent to bob")
    await agent.assert_shows_what_is_stored()


@pytest.mark.parametrize("status", ["resolved", "cancelled"])
async def test_an_approval_is_denied(agent: Agent, status: str) -> None:
    await agent.open()
    await agent("send", text="mail")
    state = await agent("decide", payload={"approved": False, "reason": "not now"}, status=status)
    (result,) = [each for each in state["messages"] if each["role"] == "tool"]
    assert result["metadata"]["is_error"]
    assert ("not now" in result["content"]) == (status == "resolved")
    assert state["messages"][-1]["content"] == "That is it."
    await agent.assert_shows_what_is_stored()


async def test_a_tool_of_the_page_and_an_approval_in_the_same_turn(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="both")
    assert state["seen"]["outcome"] == "success"
    assert state["seen"]["pending"] == [state["messages"][-1]["toolCalls"][0]["id"]]
    assert (await agent.thread())["pendingToolCallIds"] == state["seen"]["pending"]
    state = await agent("output", output='{"city":"Bern"}')
    assert state["seen"]["outcome"] == "interrupt"
    state = await agent("decide", payload=True)
    assert roles_of(state) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert state["messages"][2]["content"] == '{"city":"Bern"}'
    await agent.assert_shows_what_is_stored()


async def test_a_tool_of_the_page_fails_beside_one_of_the_server(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="where")
    assert roles_of(state) == ["user", "assistant", "tool"]
    state = await agent("output", error="no permission")
    assert sorted(each["content"] for each in state["messages"] if each["role"] == "tool") == [
        "no permission",
        '{"city":"?","degrees":12}',
    ]
    assert state["messages"][-1]["content"] == "That is it."
    await agent.assert_shows_what_is_stored()


async def test_stop_ends_the_turn_and_keeps_its_text(agent: Agent) -> None:
    await agent.open()
    await agent("begin", text="hang")
    await agent("until", says="That ")
    await agent("abort")
    await agent("settled")
    state = await agent("connect")
    assert (state["seen"]["outcome"], text_of(state)) == ("cancelled", "That ")
    await agent.assert_shows_what_is_stored()


async def test_the_error_of_a_turn_is_that_of_the_run(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="fail")
    assert state["seen"]["error"] == "It cannot be done."
    assert text_of(state) == "That "
    await agent.assert_shows_what_is_stored()


async def test_an_output_has_its_schema_and_files_reach_the_model(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="structured", more={"output": {"schema": SEA}})
    assert (state["seen"]["outcome"], state["seen"]["result"]) == ("success", {"sea": "North"})
    source = {"type": "data", "value": b64encode(b"Salt.").decode(), "mimeType": "text/plain"}
    content = [{"type": "document", "source": source}, {"type": "text", "text": "recall"}]
    state = await agent("send", content=content)
    assert state["messages"][-1]["content"].endswith("document  / text recall")
    questions = [each for each in (await agent.thread())["messages"] if each["role"] == "user"]
    assert [part["type"] for part in questions[1]["content"]] == ["document", "text"]


async def test_a_round_that_starts_again_takes_back_its_text(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text=f"break once {uuid4()}", more={"limits": {"recovery": "retry"}})
    assert state["seen"]["events"].count("MESSAGES_SNAPSHOT") == 1
    assert state["seen"].get("thrown") is None
    assert text_of(state) == "That is it."
    assert state["messages"][0]["role"] == "user"
    await agent.assert_shows_what_is_stored()


async def test_an_agent_connects_again_after_the_process_that_held_its_run_is_gone(
    agent: Agent, server: ScriptServer
) -> None:
    await agent.open()
    await agent("begin", text="plain")
    await agent("settled")
    await agent("begin", text=f"hang once {uuid4()}")
    await agent("until", says="That is it.That ")
    await server.kill()
    state = await agent("settled")
    assert "thrown" in state["seen"]
    await server.start()
    state = await agent("connect")
    assert state["seen"]["outcome"] == "success"
    assert text_of(state) == "That is it.That is it."
    assert roles_of(state) == ["user", "assistant", "user", "assistant"]
    await agent.assert_shows_what_is_stored()


async def test_an_agent_connects_to_another_replica_after_the_one_that_wrote_was_killed(
    agent: Agent, server: ScriptServer, replica: ScriptServer
) -> None:
    await agent.open()
    await agent("begin", text=f"hang once {uuid4()}")
    await agent("until", says="That ")
    await replica.start()
    await server.kill()
    await agent("settled")
    agent.move(replica)
    await agent.open()
    state = await agent("connect")
    assert (state["seen"]["outcome"], text_of(state)) == ("success", "That is it.")
    await agent.assert_shows_what_is_stored()
    await server.start()
    await replica.terminate()


async def test_a_page_that_is_opened_while_a_turn_runs_follows_it(agent: Agent) -> None:
    await agent.open()
    await agent("begin", text="hang")
    await agent("until", says="That ")
    await agent.open()
    await agent("follow")
    state = await agent("until", says="That ")
    assert roles_of(state) == ["user", "assistant"]
    await agent("abort")
    await agent("settled")


async def test_a_page_that_is_opened_while_a_turn_waits_can_answer(agent: Agent) -> None:
    await agent.open()
    await agent("send", text="mail")
    await agent.open()
    state = await agent("connect")
    assert state["seen"]["outcome"] == "interrupt"
    state = await agent("decide", payload={"approved": True})
    assert roles_of(state) == ["user", "assistant", "tool", "assistant"]
    await agent.assert_shows_what_is_stored()


async def test_running_an_answered_message_again_gives_another_answer(agent: Agent) -> None:
    await agent.open()
    first = (await agent("send", text="plain", id="m1"))["messages"]
    await agent.open(first[:1])
    state = await agent("run")
    assert roles_of(state) == ["user", "assistant"]
    assert state["messages"][1]["id"] != first[1]["id"]
    await agent.assert_shows_what_is_stored()


async def test_a_thread_that_is_not_known_keeps_the_messages_of_its_page(agent: Agent) -> None:
    greeting = {"id": "hello", "role": "assistant", "content": "How can I help?"}
    await agent.open([greeting])
    state = await agent("connect")
    assert state["messages"] == [greeting]
    await agent("send", text="mail")
    state = await agent("decide", payload=True)
    assert state["messages"][0] == greeting
    assert roles_of(state) == ["assistant", "user", "assistant", "tool", "assistant"]


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}}
SEEDS: list[list[Json]] = [
    [{"id": "a", "role": "assistant", "content": "How can I help?"}],
    [{"id": "u", "role": "user", "content": "Moin"}, {"id": "a", "role": "assistant", "content": "Ahoy."}],
    [
        {"id": "u", "role": "user", "content": "Colour?"},
        {"id": "b", "role": "assistant", "toolCalls": [CALL]},
        {"id": "t", "role": "tool", "toolCallId": "c1", "content": "blue"},
        {"id": "a", "role": "assistant", "content": "Blue."},
    ],
]
RECALLED = [
    "text … / text How can I help? / text recall",
    "text Moin / text Ahoy. / text recall",
    'text Colour? / tool_use {"at":"sea"} / tool_result blue / text Blue. / text recall',
]


@pytest.mark.parametrize(
    ("seed", "recalled"), list(zip(SEEDS, RECALLED, strict=True)), ids=["greeting", "chat", "tools"]
)
async def test_the_model_gets_the_messages_that_a_page_begins_with(
    agent: Agent, seed: list[Json], recalled: str
) -> None:
    await agent.open(seed)
    state = await agent("send", text="recall")
    assert state["messages"][-1]["content"] == recalled
    said = [(each["role"], each.get("content")) for each in state["messages"]]
    shown = await agent("connect")
    assert shown["messages"] == state["messages"], "each is there once, as the page has it"
    assert [(each["role"], each.get("content")) for each in (await agent.thread())["messages"]] == said
    state = await agent("send", text="recall")
    assert state["messages"][-1]["content"] == f"{recalled} / text {recalled} / text recall"


async def test_the_state_of_a_page_is_its_own(agent: Agent) -> None:
    await agent.open()
    state = await agent("send", text="plain")
    assert state["state"]["turnstream"]["chat"] == (await agent.thread())["chat"]


async def test_the_examples_of_the_page_work_unchanged(node: str, server: ScriptServer) -> None:
    page = (ROOT / "docs/ag-ui.md").read_text(encoding="utf-8")
    begin, resume = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    begin = begin.replace("agent.runAgent()", "agent.runAgent({ forwardedProps: { turnstream: { model: 'script' } } })")
    begin = begin.replace("headers: { Authorization: `Bearer ${token}` }", "headers: {}")
    begin = begin.replace("How long does the battery last?", "mail")
    given = f"const [server, threadId] = {json.dumps([server.url, str(uuid4())])}"
    script = f"{given}\n{begin}\n{resume}\nconsole.log(agent.messages.at(-1).content)"
    running = await asyncio.create_subprocess_exec(
        *(node, "--input-type=module", "--eval", script), cwd=FOLDER, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await running.communicate()
    assert printed.decode() == "That is it.\n"

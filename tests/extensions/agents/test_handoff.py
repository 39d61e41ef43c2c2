"""Handoff: the answer of an agent becomes the answer of the calling turn, without another model call."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.extensions.agents.families import calling
from tests.support.agents import call, ended, job_of, post, results, script
from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from tests.support.locks import Locker, connection_to
from tests.support.server_process import Server as ServerProcess
from turnstream.domain.kinds import TEXT, TOOL_USE
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.scripted import Pause, message_of, text
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

ANSWER = "The harbour is deep.\n\n" + "Very deep. " * 5000
EXPERT = Agent("expert", "Answers for you.", "Answer.", handoff=True)


@tool(read_only=True)
async def look() -> str:
    """Looks."""
    return "seen"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    leader = Agent("leader", "Asks an expert.", "Ask.", tools=("expert",), handoff=True)
    async with serving(database_url, Toolset([agent_tool(EXPERT), agent_tool(leader), look])) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def test_the_answer_is_complete_and_costs_no_model_call_and_later_turns_see_it(
    server: Server, api: Client, database_url: str
) -> None:
    model, provider = script(
        server, message_of(text("I ask. "), call("expert", "a")), message_of(text(ANSWER)), message_of(text("Yes."))
    )
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert (turn["status"], turn["stop_reason"], len(provider.requests)) == ("complete", "handoff", 2)
    assert [(block["type"], block["text"]) for block in turn["blocks"] if block["type"] == "text"] == [
        ("text", "I ask. "),
        ("text", ANSWER),
    ]
    assert turn["degraded"] == []
    assert [round["stop_reason"] for round in turn["rounds"]] == ["tool_use", "handoff"]
    async with connection_to(database_url) as rows:
        charged = await rows.fetch("SELECT call FROM charges WHERE turn_id = $1", turn["id"])
    assert [row["call"] for row in charged] == ["1.1"]
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    await ended(api, await api.json("POST", f"/api/chats/{chat['id']}/turns", 201, json={**said("Sure?")}))
    spoken = [message for message in provider.requests[-1].messages if message.role == "assistant"]
    assert [[block.type for block in message.blocks] for message in spoken] == [[TEXT, TOOL_USE], [TEXT]]
    assert spoken[-1].blocks[0].text == ANSWER


async def test_an_agent_hands_over_to_an_agent(server: Server, api: Client) -> None:
    asks = [message_of(call("leader", "a")), message_of(call("expert", "b"))]
    model, provider = script(server, *asks, message_of(text("It is deep.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert (turn["stop_reason"], turn["blocks"][-1]["text"], len(provider.requests)) == ("handoff", "It is deep.", 3)


async def test_the_model_answers_after_another_call_of_the_round_or_a_failure(server: Server, api: Client) -> None:
    beside = message_of(call("expert", "a"), call("expert", "b"))
    model, _ = script(server, beside, *(message_of(text(word)) for word in ("One.", "Two.", "Both.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert (turn["stop_reason"], turn["blocks"][-1]["text"]) == ("end_turn", "Both.")
    pause = Pause()
    model, _ = script(
        server, message_of(call("expert", "a")), [pause, *message_of(text("Late."))], message_of(text("So."))
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    child = (await job_of(api, exchange))["child"]
    await pause.reached.wait()
    await api.json("POST", f"/api/chats/{child['chat']}/turns/{child['turn']}/cancel", 202)
    turn = await ended(api, exchange)
    assert (turn["stop_reason"], turn["blocks"][-1]["text"]) == ("end_turn", "So.")
    assert "did not end its work (cancelled)" in results(turn)["a"]


async def test_a_message_of_the_user_is_answered_by_the_model(server: Server, api: Client) -> None:
    pause = Pause()
    model, provider = script(
        server, message_of(call("expert", "a")), [pause, *message_of(text("Deep."))], message_of(text("Ok."))
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    await pause.reached.wait()
    chat = exchange["assistant_turn"]["chat_id"]
    await api.json("POST", f"/api/chats/{chat}/turns", 202, json={**said("In feet!"), "on_busy": "steer"})
    pause.go.set()
    turn = await ended(api, exchange)
    assert (turn["stop_reason"], turn["blocks"][-1]["text"], len(provider.requests)) == ("end_turn", "Ok.", 3)


async def by_ai_sdk(api: Client, url: str, model: str) -> str:
    message = {"id": "", "role": "user", "parts": [{"type": "text", "text": "Ask."}]}
    answer = await api.post(
        "/api/ai-sdk/chat", json={"id": str(uuid4()), "messages": [message], "turnstream": {"model": model}}
    )
    return "".join(each["delta"] for each in events_in(answer.text) if each["type"] == "text-delta")


async def by_ag_ui(api: Client, url: str, model: str) -> str:
    body = {"threadId": str(uuid4()), "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Ask."}]}
    answer = await api.post("/api/ag-ui", json={**body, "forwardedProps": {"turnstream": {"model": model}}})
    return "".join(each["delta"] for each in events_in(answer.text) if each["type"] == "TEXT_MESSAGE_CONTENT")


async def by_responses(api: Client, url: str, model: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.responses.create(model=model, input="Ask.", stream=True)
        return "".join([each.delta async for each in stream if each.type == "response.output_text.delta"])


async def by_completions(api: Client, url: str, model: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Ask."}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert [reason for chunk in chunks for c in chunk.choices if (reason := c.finish_reason)] == ["stop"]
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def by_messages(api: Client, url: str, model: str) -> str:
    async with AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        async with client.messages.stream(
            model=model, max_tokens=100, messages=[{"role": "user", "content": "Ask."}]
        ) as stream:
            words = "".join([piece async for piece in stream.text_stream])
            assert (await stream.get_final_message()).stop_reason == "end_turn"
        return words


def events_in(body: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(each) for each in data]


@pytest.mark.extensions("ai_sdk", "ag_ui", "openai_api", "anthropic_api")
@pytest.mark.parametrize("dialect", [by_ai_sdk, by_ag_ui, by_responses, by_completions, by_messages])
async def test_the_answer_is_streamed_in_each_dialect(
    server: Server, api: Client, dialect: Callable[[Client, str, str], Awaitable[str]]
) -> None:
    model, provider = script(server, message_of(call("expert", "a")), message_of(text("It is ", "deep.")))
    assert await dialect(api, server.url, model) == "It is deep."
    assert len(provider.requests) == 2


TOOLS = """
[agents.expert]
description = "Answers."
prompt = "Answer."
handoff = true
"""
# While a test holds the lock, the writes that WRITES lists wait inside their transaction.
HALTS = """
CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
CREATE TRIGGER halted BEFORE {write} FOR EACH ROW WHEN (NEW.{when}) EXECUTE FUNCTION halt();
"""
WRITES = {
    "the result": ("INSERT ON blocks", "type = 'tool_result'"),
    "the answer": ("INSERT ON blocks", "type = 'text' AND NEW.round = 2"),
    "the end": ("UPDATE ON turns", "stop_reason = 'handoff'"),
}


@pytest.mark.extensions("agents", "demo")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("write", WRITES)
async def test_after_a_kill_in_a_write_of_the_handoff_the_answer_is_there_once(
    database_url: str, tmp_path: Path, write: str
) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS)
    settings = {"TURNSTREAM_TOOLS_FILE": str(file), "TURNSTREAM_MODEL": "demo"}
    server = ServerProcess(database_url, tmp_path, settings)
    await server.start()
    try:
        async with connection_to(database_url) as rows, connection_to(database_url) as other:
            statement, when = WRITES[write]
            await rows.execute(HALTS.format(write=statement, when=when))
            locker = Locker(other, rows)
            async with locker.holding("SELECT pg_advisory_xact_lock(1)"):
                async with Client(server.url) as api:
                    exchange = await api.json("POST", "/api/turns", 201, json=said(calling("expert", "/long 30")))
                await locker.waiting()
                await server.kill()
            await server.start()
            async with Client(server.url) as api:
                turn = await ended(api, exchange)
            await check(turn, rows)
    finally:
        await server.close()


async def check(turn: dict[str, Any], rows: "asyncpg.Connection[Any]") -> None:
    assert (turn["status"], turn["stop_reason"]) == ("complete", "handoff")
    answers = [block["text"] for block in turn["blocks"] if block["type"] == "text" and block["round"] > 1]
    assert [answer.split() for answer in answers] == [[str(number) for number in range(1, 31)]]
    assert list(results(turn).values()) == answers
    assert await rows.fetchval("SELECT count(*) FROM chats WHERE of_turn IS NOT NULL") == 1
    sealed = [round["stop_reason"] for round in turn["rounds"] if round["stop_reason"] not in {None, "voided"}]
    assert sealed == ["tool_use", "handoff"]

"""A server is killed during an answer that the provider stores. Another server reads the answer to its end, and the
answer is paid once.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import StartServer, server
from tests.integration.api.test_openapi import until
from tests.support.http_client import Client, said
from tests.support.responses_server import ResponsesServer, responses_server

__all__ = ["server"]

MODELS = """
[providers.keeper]
api = "openai-responses"
key = "a key"
base_url = "{url}"

[models.keeper-1]
provider = "keeper"
options = {{ background = true }}
prices = {{ input = 1.0, output = 10.0 }}

[models.talker-1]
provider = "keeper"
options = {{ transport = "websocket" }}
"""


MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look."}],
}


@pytest.fixture
async def provider() -> AsyncIterator[ResponsesServer]:
    async with responses_server() as provider:
        yield provider


@pytest.fixture
def settings(provider: ResponsesServer, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "models.toml"
    file.write_text(MODELS.format(url=provider.url))
    return {"TURNSTREAM_MODELS_FILE": str(file), "TURNSTREAM_MODEL": "keeper-1"}


@pytest.mark.timeout(180)
async def test_after_a_kill_the_answer_is_read_to_its_end_and_paid_for_once(
    server: StartServer, provider: ResponsesServer, settings: dict[str, str]
) -> None:
    first = await server(**settings)
    async with Client(first.url) as api:
        new = await api.json("POST", "/api/turns", 201, json=said("How do tides turn?"))
        answer = await provider.asked.get()
        answer.begin()
        answer.say("The ", "tide ")
        async with api.follow(new["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
        await first.kill()
    answer.say("turns.")
    second = await server(**settings)
    assert await provider.read_again.get() is answer
    answer.say(" Twice a day.")
    answer.finish()
    turn = new["assistant_turn"]
    async with Client(second.url) as api:
        await api.events(new["stream_url"])
        ended = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert ended["status"] == "complete"
    assert [block["text"] for block in ended["blocks"]] == ["The tide turns. Twice a day."]
    assert (ended["usage"]["input_tokens"], ended["usage"]["output_tokens"]) == (100, 7), "the usage of one answer"
    assert ended["cost"] == pytest.approx((100 * 1 + 7 * 10) / 1_000_000)
    assert len(provider.paid) == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kill", [False, True])
async def test_a_cancelled_turn_cancels_the_answer_at_its_provider(
    server: StartServer, provider: ResponsesServer, settings: dict[str, str], kill: bool
) -> None:
    replica = await server(**settings)
    async with Client(replica.url) as api:
        new = await api.json("POST", "/api/turns", 201, json=said("How do tides turn?"))
        turn = new["assistant_turn"]
        answer = await provider.asked.get()
        answer.begin()
        answer.say("The ")
        async with api.follow(new["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
        if kill:
            await replica.kill()
            replica = await server(**settings)
    async with Client(replica.url) as api:
        await api.json("POST", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}/cancel", 202)
        async with asyncio.timeout(60):
            await answer.cancelled.wait()
        await api.events(new["stream_url"])
        ended = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert ended["status"] == "cancelled"
    assert len(provider.paid) == 1


@pytest.mark.timeout(180)
async def test_a_deploy_in_the_middle_of_the_answer_is_no_second_call(
    server: StartServer, provider: ResponsesServer, settings: dict[str, str]
) -> None:
    first = await server(**settings)
    second = await server(**settings)
    async with Client(first.url) as api:
        new = await api.json("POST", "/api/turns", 201, json=said("How do tides turn?"))
        answer = await provider.asked.get()
        answer.begin()
        answer.say("The ")
        async with api.follow(new["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
    assert await first.terminate() == 0
    assert await provider.read_again.get() is answer
    answer.say("tide turns.")
    answer.finish()
    turn = new["assistant_turn"]
    async with Client(second.url) as api:
        await api.events(new["stream_url"])
        ended = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert [block["text"] for block in ended["blocks"]] == ["The tide turns."]
    assert not answer.cancelled.is_set()
    assert len(provider.paid) == 1


@pytest.mark.timeout(180)
async def test_the_calls_of_a_turn_go_over_one_websocket_and_a_kill_opens_another(
    server: StartServer, provider: ResponsesServer, settings: dict[str, str]
) -> None:
    replica = await server(**{**settings, "TURNSTREAM_MODEL": "talker-1"})
    async with Client(replica.url) as api:
        new = await api.json("POST", "/api/turns", 201, json=said("Which pages are there?"))
        for number in range(3):
            answer = await provider.asked.get()
            assert answer.request.get("previous_response_id") == (f"resp_{number - 1}" if number else None)
            assert len(answer.request["input"]) == 1, "the question, then one result at a time"
            answer.begin()
            answer.call(f"call_{number}", "doc_tree")
            call = {"type": "function_call", "call_id": f"call_{number}", "name": "doc_tree", "arguments": "{}"}
            answer.finish(output=[call])
        answer = await provider.asked.get()
        assert len(provider.sockets) == 1
        answer.begin()
        answer.say("There ")
        async with api.follow(new["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
        await replica.kill()
    replica = await server(**{**settings, "TURNSTREAM_MODEL": "talker-1"})
    answer = await provider.asked.get()
    assert "previous_response_id" not in answer.request
    calls = [item["call_id"] for item in answer.request["input"] if item.get("type") == "function_call_output"]
    assert calls == ["call_0", "call_1", "call_2"]
    answer.begin()
    answer.say("There are two.")
    answer.finish()
    turn = new["assistant_turn"]
    async with Client(replica.url) as api:
        await api.events(new["stream_url"])
        ended = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert ended["status"] == "complete"
    assert len(provider.sockets) == 2


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["a call", "a steer"])
async def test_an_answer_no_longer_needed_by_the_turn_is_cancelled_and_a_new_one_is_made(
    server: StartServer, provider: ResponsesServer, settings: dict[str, str], what: str
) -> None:
    replica = await server(**settings)
    async with Client(replica.url) as api:
        new = await api.json("POST", "/api/turns", 201, json=said("Which pages are there?"))
        turn = new["assistant_turn"]
        answer = await provider.asked.get()
        answer.begin()
        answer.say("I look.")
        async with api.follow(new["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
            if what == "a call":
                answer.send({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 0})
                answer.send({"type": "response.output_item.done", "output_index": 0, "item": MESSAGE})
                answer.call("call_1", "doc_tree")
                assert "block_stop" in [event.name async for event in until("block_stop", events)]
                stored = 0
                while stored < 2:  # the second block is the call, so the call is stored then
                    shown = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
                    stored = len(shown["blocks"])
            else:
                steer = {**said("Briefly"), "on_busy": "steer"}
                await api.json("POST", f"/api/chats/{turn['chat_id']}/turns", 202, json=steer)
        await replica.kill()
    replica = await server(**settings)
    second = await provider.asked.get()
    assert answer.cancelled.is_set()
    sent = str(second.request["input"])
    assert ("function_call_output" in sent, "Briefly" in sent) == (what == "a call", what == "a steer")
    # The turn keeps the text of the open block that the journal had before the kill.
    assert what == "a steer" or "I look." in sent, "the text is kept"
    second.begin()
    second.say("Two.")
    second.finish()
    async with Client(replica.url) as api:
        await api.events(new["stream_url"])
        ended = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert ended["status"] == "complete"
    assert (len(provider.paid), provider.reads) == (2, [])

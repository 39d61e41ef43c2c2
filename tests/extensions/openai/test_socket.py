"""WebSocket mode: the model calls of a turn share a connection, and each call sends only the new items."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.extensions.openai.test_background import Call
from tests.integration.adapters import REQUEST
from tests.support.responses_server import PaidAnswer, ResponsesServer, responses_server
from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.direct_calls.calls import DirectCalls
from turnstream.extensions.openai.provider import OpenAIResponsesProvider
from turnstream.extensions.openai.responses import socket as sockets
from turnstream.llm.provider import BlockOpened, BlockText, Message, MessageEnded, ModelCall, ModelRequest, Part

Json = dict[str, Any]

RESULT = {"type": "function_call_output", "call_id": "a", "output": "sand"}


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with responses_server() as server:
        yield server


@pytest.fixture
async def provider(server: ResponsesServer) -> AsyncIterator[OpenAIResponsesProvider]:
    async with OpenAIResponsesProvider("a key", server.url, make_calls=DirectCalls) as provider:
        yield provider


CALL: Json = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}


def texts(parts: list[Part]) -> str:
    """Returns the text of the answer. The inputs of calls are left out."""
    keys = {part.key for part in parts if isinstance(part, BlockOpened) and part.type == "text"}
    opened = "".join(part.text for part in parts if isinstance(part, BlockOpened) and part.type == "text")
    return opened + "".join(part.text for part in parts if isinstance(part, BlockText) and part.key in keys)


def first_of(turn: UUID) -> ModelRequest:
    tools = (ToolSpec("look", "Looks.", '{"type": "object"}'),)
    return replace(REQUEST, options={"transport": "websocket"}, tools=tools, call=ModelCall(turn, 1, 1, "a-model"))


def second_of(first: ModelRequest, said: str = "Let me look.", arguments: str = "{}", **changed: Any) -> ModelRequest:
    """Returns the request that follows the first request and contains the result of its call."""
    reply = [Block(1, 1, 1, "text", said)] if said else []
    call = Block(2, 1, 1, "tool_use", arguments, tool_use_id="a", name="look")
    result = Block(3, 1, 1, "tool_result", "sand", tool_use_id="a", name="look")
    messages = (*first.messages, Message("assistant", (*reply, call)), Message("user", (result,)))
    return replace(first, messages=messages, **changed)


def calls(answer: PaidAnswer, *words: str) -> None:
    """Writes an answer that has a text and a tool call."""
    answer.begin()
    answer.say(*words)
    answer.call("a")
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "".join(words)}]}
    call = {"type": "function_call", "id": "fc_a", "call_id": "a", "name": "look", "arguments": "{ }"}
    answer.finish(output=[{"type": "reasoning", "id": "rs_1", "summary": []}, said, call])


def ends(answer: PaidAnswer) -> None:
    answer.begin()
    answer.say("Sand.")
    answer.finish()


async def read(provider: OpenAIResponsesProvider, request: ModelRequest) -> list[Part]:
    found: list[Part] = []
    async with aclosing(provider.stream(request)) as stream:
        async for parts in stream:
            found += parts
    return found


async def answered(
    server: ResponsesServer, provider: OpenAIResponsesProvider, request: ModelRequest, write: Any, *words: str
) -> tuple[list[Part], Json]:
    """Returns the parts of an answer, and the request that the provider has received."""
    reading = asyncio.create_task(read(provider, request))
    answer = await server.asked.get()
    write(answer, *words)
    return await reading, answer.request


async def test_the_calls_of_a_turn_share_a_connection_and_the_second_sends_only_the_results(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    request = first_of(uuid4())
    parts, asked = await answered(server, provider, request, calls, "Let me ", "look.")
    assert texts(parts) == "Let me look."
    assert isinstance(parts[-1], MessageEnded)
    assert (len(asked["input"]), asked["store"], asked["model"]) == (1, False, "a-model")
    parts, asked = await answered(server, provider, second_of(request), ends)
    assert texts(parts) == "Sand."
    assert (asked["previous_response_id"], asked["input"]) == ("resp_0", [RESULT])
    assert len(server.sockets) == 1
    assert provider._sockets._waiting == {}, "the turn has no further call"


@pytest.mark.parametrize(
    "changed",
    [
        {"said": "Something else."},
        {"said": ""},
        {"arguments": '{"deep": true}'},
        {"messages": (Message("user", (Block(0, 0, 0, "text", "Another question"),)),)},
    ],
    ids=str,
)
async def test_a_call_that_does_not_continue_the_last_reply_as_it_came_sends_everything(
    server: ResponsesServer, provider: OpenAIResponsesProvider, changed: Json
) -> None:
    request = first_of(uuid4())
    await answered(server, provider, request, calls, "Let me look.")
    messages = changed.pop("messages", None)
    second = replace(request, messages=messages) if messages else second_of(request, **changed)
    _, asked = await answered(server, provider, second, ends)
    assert "previous_response_id" not in asked
    assert len(asked["input"]) == len(json.loads(provider.render(second, provider.quirks))["input"])
    assert len(server.sockets) == 1


async def test_turns_do_not_share_connections(server: ResponsesServer, provider: OpenAIResponsesProvider) -> None:
    one, other = first_of(uuid4()), first_of(uuid4())
    await answered(server, provider, one, calls, "Let me look.")
    await answered(server, provider, other, calls, "Let me look.")
    _, asked = await answered(server, provider, second_of(one), ends)
    assert asked["previous_response_id"] == "resp_0"
    assert len(server.sockets) == 2


async def test_a_call_without_a_turn_has_a_connection_of_its_own(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    for _ in range(2):
        await answered(server, provider, replace(first_of(uuid4()), call=None), calls, "Let me look.")
    assert len(server.sockets) == 2


@pytest.mark.parametrize("how", ["forgotten", "closed", "broken", "gone", "old", "expired", "too many"])
async def test_if_the_connection_or_its_response_is_gone_the_whole_input_goes_over_a_new_one(
    server: ResponsesServer, provider: OpenAIResponsesProvider, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "old":
        monkeypatch.setattr(sockets, "_LONGEST_USE", -1.0)
    if how == "expired":
        monkeypatch.setattr(sockets, "_LONGEST_WAIT", 0.0)
    if how == "too many":
        monkeypatch.setattr(sockets, "_MOST_WAITING", 0)
    request = first_of(uuid4())
    await answered(server, provider, request, calls, "Let me look.")
    server.forgets = how == "forgotten"
    if how == "closed":
        await server.sockets[0].close()
    if how == "broken":
        server.paid[0].cut()
    if how == "gone":  # the client must find out only when it sends, so `closed` always returns False
        ((chain, _),) = provider._sockets._waiting.values()
        monkeypatch.setattr(type(chain.socket), "closed", property(lambda _: False))
        await chain.socket.close()
    parts, asked = await answered(server, provider, second_of(request), ends)
    assert texts(parts) == "Sand."
    assert ("previous_response_id" in asked, len(asked["input"])) == (False, 4)
    assert len(server.sockets) == 2
    assert len(server.paid) == 2


@pytest.mark.parametrize("events", range(1, 5))
async def test_a_connection_that_is_lost_behind_any_event_is_a_cut_answer(
    server: ResponsesServer, provider: OpenAIResponsesProvider, events: int
) -> None:
    call = Call(provider, first_of(uuid4()))
    answer = await server.asked.get()
    answer.begin()
    answer.say("The ", "tide")
    whole, answer.events[:] = list(answer.events), answer.events[:events]
    answer.send()
    assert len(whole) == 4
    await call.has("".join(["The ", "tide"][: max(0, events - 2)]))
    answer.cut()
    await asyncio.wait({call.task})
    parts, error = call.parts, call.task.exception()
    assert not any(isinstance(part, MessageEnded) for part in parts)
    assert error is None or isinstance(error, TransientError)
    assert texts(parts) == "".join(["The ", "tide"][: max(0, events - 2)])


@pytest.mark.parametrize(
    ("output", "continues"),
    [
        ([{"type": "message", "content": "Let me "}, {"type": "message", "content": "look."}, CALL], True),
        ([{"type": "message", "content": [{"type": "refusal", "refusal": "Let me look."}]}, CALL], True),
        ([{"type": "message", "content": "Let me look."}, {**CALL, "arguments": "{"}], False),
        ([{"type": "message", "content": "Let me look."}, {**CALL, "arguments": {}}], False),
        ([], False),
    ],
)
async def test_a_reply_is_compared_with_the_output_that_the_provider_reports(
    server: ResponsesServer, provider: OpenAIResponsesProvider, output: list[Json], continues: bool
) -> None:
    def calls_so(answer: PaidAnswer) -> None:
        answer.begin()
        answer.say("Let me look.")
        answer.call("a")
        answer.finish(output=output)

    request = first_of(uuid4())
    await answered(server, provider, request, calls_so)
    _, asked = await answered(server, provider, second_of(request), ends)
    assert ("previous_response_id" in asked) is continues


async def test_an_output_of_the_providers_own_tool_behind_the_reply_is_no_new_item(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    request = first_of(uuid4())
    await answered(server, provider, request, calls, "Let me look.")
    more = Message("assistant", (Block(4, 2, 1, "text", "More."),))
    second = second_of(request)
    _, asked = await answered(server, provider, replace(second, messages=(*second.messages, more)), ends)
    assert "previous_response_id" not in asked


async def test_binary_frames_are_read_and_a_frame_that_is_no_json_is_a_bad_stream(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    server.binary = True
    request = first_of(uuid4())
    parts, _ = await answered(server, provider, request, calls, "Let me look.")
    assert texts(parts) == "Let me look."
    reading = asyncio.create_task(read(provider, second_of(request)))
    answer = await server.asked.get()
    answer.send({"raw": "no\njson"})
    with pytest.raises(TransientError) as failure:
        await reading
    assert failure.value.type == "bad_stream"


async def test_if_no_further_connection_is_accepted_the_call_fails_and_the_next_one_uses_http(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    request = first_of(uuid4())
    await answered(server, provider, request, calls, "Let me look.")
    server.forgets, server.accepts_sockets = True, False
    with pytest.raises(TransientError):
        await read(provider, second_of(request))
    _, asked = await answered(server, provider, second_of(request), ends)
    assert asked["stream"] is True


async def test_a_new_connection_that_is_lost_at_once_is_a_failure_of_the_call(
    server: ResponsesServer, provider: OpenAIResponsesProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = provider._sockets.new_chain

    async def closed() -> sockets.Chain | None:
        chain = await connect()
        assert chain is not None
        await chain.socket.close()
        return chain

    monkeypatch.setattr(provider._sockets, "new_chain", closed)
    with pytest.raises(TransientError):
        await read(provider, first_of(uuid4()))
    assert server.paid == []


async def test_two_calls_of_a_turn_at_once_have_two_connections_of_which_one_is_kept(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    request = first_of(uuid4())
    readings = [asyncio.create_task(read(provider, request)) for _ in range(2)]
    for _ in readings:
        calls(await server.asked.get(), "Let me look.")
    await asyncio.gather(*readings)
    assert (len(server.sockets), len(provider._sockets._waiting)) == (2, 1)


async def test_a_provider_without_websockets_is_called_by_http_and_not_asked_again_at_once(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    server.accepts_sockets = False
    request = first_of(uuid4())
    parts, asked = await answered(server, provider, request, calls, "Let me look.")
    assert (texts(parts), asked["stream"]) == ("Let me look.", True)
    server.accepts_sockets = True
    _, asked = await answered(server, provider, second_of(request), ends)
    assert (asked["stream"], len(asked["input"])) == (True, 4)
    assert server.sockets == []


async def test_calls_through_an_sdk_use_http(server: ResponsesServer) -> None:
    async with OpenAIResponsesProvider("a key", server.url) as provider:
        _, asked = await answered(server, provider, first_of(uuid4()), ends)
    assert asked["stream"] is True


async def test_a_refused_request_is_the_error_that_it_is_by_http(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    reading = asyncio.create_task(read(provider, first_of(uuid4())))
    answer = await server.asked.get()
    error = {"type": "invalid_request_error", "code": "model_not_found", "message": "There is no such model."}
    answer.send({"type": "error", "status": 404, "error": error})
    with pytest.raises(PermanentError, match="There is no such model"):
        await reading


async def test_a_cancelled_call_closes_its_connection(
    server: ResponsesServer, provider: OpenAIResponsesProvider
) -> None:
    reading = asyncio.create_task(read(provider, first_of(uuid4())))
    answer = await server.asked.get()
    answer.begin()
    reading.cancel()
    await asyncio.wait({reading})
    await provider._sockets.aclose()
    assert not provider._sockets._waiting

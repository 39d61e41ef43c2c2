import io
from typing import Any

import msgspec
import pytest

from tests.support.scripted_server import ScriptedServer, answer, sse, stream
from turnstream_client.errors import RequestRejected
from turnstream_client.events import Json
from turnstream_client.http import AsyncClient
from turnstream_terminal.chat_session import ChatSession, call_key
from turnstream_terminal.turn_view import PlainTurnView

BOOK: Json = {
    "tool_use_id": "a",
    "name": "book",
    "type": "approval",
    "input": {},
    "input_digest": "d1",
    "expires_at": None,
}
SEND: Json = {**BOOK, "tool_use_id": "b", "name": "send", "input_digest": "d2"}
END = sse("2-9-0", "turn_complete", '{"stop_reason":"end_turn","usage":{}}')


def turn(*actions: Json, **members: Any) -> Json:
    calls = [
        {"index": index, "round": 1, "type": "tool_use", "id": identity, "name": name, "text": "{}", "input": {}}
        for index, (identity, name) in enumerate((("a", "book"), ("b", "send")))
    ]
    return {
        "id": "t",
        "chat_id": "c",
        "model": "demo",
        "status": "waiting",
        "stop_reason": None,
        "error": None,
        "usage": {},
        "rounds": [],
        "blocks": calls,
        "actions": list(actions),
        "degraded": [],
        "cursor": "1-5-0",
        **members,
    }


def result_of(identity: str, index: int) -> str:
    block = {"index": index, "round": 1, "type": "tool_result", "tool_use_id": identity, "name": "x"}
    return sse(f"2-{5 + index}-0", "block_start", msgspec.json.encode(block).decode()) + sse(
        f"2-{6 + index}-0", "block_stop", f'{{"index":{index},"is_error":false}}'
    )


def json_answer(value: Json, status: str = "200 OK") -> bytes:
    return answer(msgspec.json.encode(value), status)


@pytest.fixture
def session(client: AsyncClient) -> ChatSession:
    return ChatSession(client, lambda state: PlainTurnView(io.StringIO(), io.StringIO(), state))


async def test_a_turn_that_waits_is_not_followed_before_an_answer(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    state = await session.follow(turn(BOOK, SEND))
    assert state.waits
    assert scripted.requests == []


async def test_an_answered_turn_is_followed_from_its_cursor_until_only_skipped_calls_wait(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    await session.follow(turn(BOOK, SEND))
    scripted.answers = [json_answer(turn(BOOK, SEND)), json_answer(turn(SEND), "202 Accepted"), json_answer(turn(SEND))]
    assert await session.pending_calls() == [BOOK, SEND]
    await session.answer_call(BOOK, {"type": "approve"})
    assert await session.pending_calls() == [SEND]
    scripted.answers = [stream(result_of("a", 2), sse("2-8-0", "round_start", "{}"))]
    state = await session.resume({call_key(SEND)})
    assert state.waits
    assert state.end is None
    assert scripted.requests[-1].headers["last-event-id"] == "1-5-0"
    request = scripted.requests[1]
    assert (request.method, request.path) == ("POST", "/api/chats/c/turns/t/actions")
    assert request.body == b'{"actions":[{"type":"approve"}]}'
    assert request.headers["idempotency-key"]


async def test_a_waiting_call_ends_the_stream_and_a_new_connection_continues_after_it(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    required = sse("1-6-0", "action_required", msgspec.json.encode({"round": 1, "calls": [BOOK]}).decode())
    scripted.answers = [stream(required, END), stream(END)]
    state = await session.follow(turn(status="running"))
    assert (state.actions, state.end) == ([BOOK], None)
    assert (await session.resume({call_key(BOOK)})).end == "turn_complete"
    assert scripted.requests[-1].headers["last-event-id"] == "1-6-0"


async def test_a_call_that_was_answered_too_late_is_not_pending_any_more(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    await session.follow(turn(BOOK))
    scripted.answers = [json_answer({"title": "Conflict", "detail": "the answer came too late"}, "409 Conflict")]
    with pytest.raises(RequestRejected, match="too late"):
        await session.answer_call(BOOK, {"type": "approve"})
    scripted.answers = [json_answer(turn(BOOK))]
    assert await session.pending_calls() == []
    scripted.answers = [stream(result_of("a", 2), END)]
    assert (await session.resume()).end == "turn_complete"


async def test_a_call_with_a_rejected_answer_stays_pending(session: ChatSession, scripted: ScriptedServer) -> None:
    await session.follow(turn(BOOK))
    scripted.answers = [json_answer({"title": "Invalid", "detail": "room is a number"}, "422 Unprocessable")]
    with pytest.raises(RequestRejected, match="room is a number"):
        await session.answer_call(BOOK, {"type": "approve", "input": {"room": "x"}})
    scripted.answers = [json_answer(turn(BOOK))]
    assert await session.pending_calls() == [BOOK]


async def test_a_turn_that_waits_can_be_stopped(session: ChatSession, scripted: ScriptedServer) -> None:
    await session.follow(turn(BOOK))
    cancelled = sse("2-9-0", "turn_cancelled", '{"stop_reason":"cancelled","usage":{}}')
    scripted.answers = [json_answer(turn(BOOK), "202 Accepted"), stream(cancelled)]
    assert (await session.stop()).end == "turn_cancelled"
    assert scripted.requests[0].path == "/api/chats/c/turns/t/cancel"


async def test_a_turn_with_a_refused_cursor_is_read_and_followed_again(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    refused = json_answer({"title": "Invalid", "detail": "1-5-0 is no cursor of this turn"}, "400 Bad Request")
    read = turn(status="running", cursor="1-4-0")
    scripted.answers = [refused, json_answer(read), stream(END)]
    assert (await session.follow(turn(status="running"))).end == "turn_complete"
    assert [request.headers.get("last-event-id") for request in scripted.requests] == ["1-5-0", None, "1-4-0"]


async def test_a_turn_that_ended_before_its_last_event_was_read_is_read_as_json(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    out = io.StringIO()
    session = ChatSession(client, lambda state: PlainTurnView(out, io.StringIO(), state))
    ended = turn(status="complete", stop_reason="end_turn")
    ended["blocks"].append({"index": 2, "round": 2, "type": "text", "text": "It is booked."})
    scripted.answers = [answer(status="204 No Content"), json_answer(ended)]
    state = await session.follow(turn(status="running"))
    assert (state.end, out.getvalue()) == ("turn_complete", "It is booked.\n")
    assert [request.path for request in scripted.requests] == [
        "/api/chats/c/turns/t/stream",
        "/api/chats/c/turns/t",
    ]

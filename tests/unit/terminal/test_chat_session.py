import io
from typing import Any

import msgspec
import pytest

from app.terminal.assembler import Json
from app.terminal.chat_session import ChatSession, asked
from app.terminal.errors import Refused
from app.terminal.http_client import Client
from app.terminal.turn_view import PlainAnswer
from tests.unit.terminal.conftest import ScriptedServer, answer, sse, stream

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


def said(value: Json, status: str = "200 OK") -> bytes:
    return answer(msgspec.json.encode(value), status)


@pytest.fixture
def session(client: Client) -> ChatSession:
    return ChatSession(client, lambda state: PlainAnswer(io.StringIO(), io.StringIO(), state))


async def test_a_turn_that_waits_already_is_not_followed_until_somebody_has_answered(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    state = await session.follow(turn(BOOK, SEND))
    assert state.waits
    assert scripted.requests == []


async def test_it_is_followed_from_its_cursor_until_it_waits_for_nothing_but_what_was_left_waiting(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    await session.follow(turn(BOOK, SEND))
    scripted.answers = [said(turn(BOOK, SEND)), said(turn(SEND), "202 Accepted"), said(turn(SEND))]
    assert await session.waiting() == [BOOK, SEND]
    await session.act(BOOK, {"type": "approve"})
    assert await session.waiting() == [SEND]
    scripted.answers = [stream(result_of("a", 2), sse("2-8-0", "round_start", "{}"))]
    state = await session.go_on({asked(SEND)})
    assert state.waits
    assert state.end is None
    assert scripted.requests[-1].headers["last-event-id"] == "1-5-0"
    act = scripted.requests[1]
    assert (act.method, act.path) == ("POST", "/api/chats/c/turns/t/actions")
    assert act.body == b'{"actions":[{"type":"approve"}]}'
    assert act.headers["idempotency-key"]


async def test_a_call_that_is_asked_about_stops_the_stream_and_a_new_connection_goes_on_behind_it(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    required = sse("1-6-0", "action_required", msgspec.json.encode({"round": 1, "calls": [BOOK]}).decode())
    scripted.answers = [stream(required, END), stream(END)]
    state = await session.follow(turn(status="running"))
    assert (state.actions, state.end) == ([BOOK], None)
    assert (await session.go_on({asked(BOOK)})).end == "turn_complete"
    assert scripted.requests[-1].headers["last-event-id"] == "1-6-0"


async def test_what_can_no_more_be_answered_is_not_asked_about_again_but_waited_for(
    session: ChatSession, scripted: ScriptedServer
) -> None:
    await session.follow(turn(BOOK))
    scripted.answers = [said({"title": "Conflict", "detail": "the answer came too late"}, "409 Conflict")]
    with pytest.raises(Refused, match="too late"):
        await session.act(BOOK, {"type": "approve"})
    scripted.answers = [said(turn(BOOK))]
    assert await session.waiting() == []
    scripted.answers = [stream(result_of("a", 2), END)]
    assert (await session.go_on()).end == "turn_complete"


async def test_an_answer_that_does_not_do_is_asked_for_again(session: ChatSession, scripted: ScriptedServer) -> None:
    await session.follow(turn(BOOK))
    scripted.answers = [said({"title": "Invalid", "detail": "room is a number"}, "422 Unprocessable")]
    with pytest.raises(Refused, match="room is a number"):
        await session.act(BOOK, {"type": "approve", "input": {"room": "x"}})
    scripted.answers = [said(turn(BOOK))]
    assert await session.waiting() == [BOOK]


async def test_a_turn_that_waits_can_be_stopped(session: ChatSession, scripted: ScriptedServer) -> None:
    await session.follow(turn(BOOK))
    cancelled = sse("2-9-0", "turn_cancelled", '{"stop_reason":"cancelled","usage":{}}')
    scripted.answers = [said(turn(BOOK), "202 Accepted"), stream(cancelled)]
    assert (await session.stop()).end == "turn_cancelled"
    assert scripted.requests[0].path == "/api/chats/c/turns/t/cancel"

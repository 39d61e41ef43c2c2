from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest

from turnstream.api.codec import block_json
from turnstream.api.events import frame
from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.log import next_event, resume
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn
from turnstream.stream.live import LiveView
from turnstream_client.assembler import Assembler
from turnstream_client.errors import StreamError
from turnstream_client.events import Json

BLOCKS = (
    Block(0, 1, 1, "thinking", "Let me see. 😀", data='{"type":"thinking","thinking":"","signature":"c2ln"}'),
    Block(1, 1, 1, "text", "I look it up."),
    Block(2, 1, 1, "tool_use", '{"query": "tides"}', tool_use_id="call_1", name="search"),
    Block(3, 1, 1, "tool_result", "nothing found", tool_use_id="call_1", name="search", is_error=True),
    Block(4, 2, 1, "text", "There is noth", interrupted=True),
)
ROUNDS = (
    Round(1, 1, messages=1, stop_reason="tool_use", usage={"output_tokens": 7}, sealed_by=1),
    Round(2, 1, messages=3, stop_reason="cancelled", usage={"output_tokens": 2}, sealed_by=1),
)
TURN = Turn(
    UUID(int=1),
    UUID(int=2),
    UUID(int=3),
    "assistant",
    "cancelled",
    attempt=1,
    stop_reason="cancelled",
    usage={"output_tokens": 9},
    rounds=ROUNDS,
    blocks=BLOCKS,
)


def events_after(cursor: Cursor) -> Iterator[tuple[str, Json, Cursor]]:
    """Decodes the frames that the server sends."""
    view = LiveView(TURN)
    cursor, reset = resume(view, cursor)
    assert reset is None
    while step := next_event(view, cursor):
        event, cursor = step
        _, name, data = frame(event, cursor).decode().splitlines()[:3]
        yield name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: ")), cursor


def test_a_turn_assembled_from_its_events_is_the_turn_of_the_api() -> None:
    state = Assembler()
    for name, data, _ in events_after(START):
        state.apply(name, data)
    assert state.blocks == [block_json(block) for block in BLOCKS]
    assert state.end == "turn_cancelled"
    assert state.stop_reason == "cancelled"
    assert state.usage == {"output_tokens": 9}
    assert [round["stop_reason"] for round in state.rounds.values()] == ["tool_use", "cancelled"]


def test_a_client_that_resumes_at_any_cursor_assembles_the_same_turn() -> None:
    events = list(events_after(START))
    for cut in range(len(events)):
        state, cursor = Assembler(), START
        for name, data, place in events[:cut]:
            state.apply(name, data)
            cursor = place
        for name, data, _ in events_after(cursor):
            state.apply(name, data)
        assert state.blocks == [block_json(block) for block in BLOCKS]


def test_a_turn_read_as_json_continues_in_its_open_block() -> None:
    turn: Json = {
        "id": "t",
        "chat_id": "c",
        "model": "demo",
        "status": "running",
        "stop_reason": None,
        "usage": {},
        "error": None,
        "rounds": [],
        "blocks": [
            {"index": 0, "round": 1, "type": "text", "text": "whole"},
            {"index": 1, "round": 1, "type": "text", "text": "half", "interrupted": False, "open": True},
        ],
    }
    state = Assembler.of(turn)
    state.apply("block_delta", {"index": 1, "offset": 4, "text": "way"})
    state.apply("block_stop", {"index": 1})
    assert state.blocks[1] == {"index": 1, "round": 1, "type": "text", "text": "halfway"}
    assert state.end is None
    assert Assembler.of({**turn, "status": "error"}).end == "turn_error"
    assert Assembler.of({**turn, "actions": [{"tool_use_id": "a"}]}).actions == [{"tool_use_id": "a"}]
    assert Assembler.of({**turn, "degraded": [{"what": "cut"}]}).degraded == [{"what": "cut"}]


def test_a_reset_removes_the_blocks_that_are_written_again() -> None:
    state = started("text")
    state.apply("block_delta", {"index": 0, "offset": 0, "text": "never mind"})
    state.apply("reset", {"attempt": 2, "index": 0})
    assert state.blocks == []
    state.apply("block_start", {"index": 0, "round": 1, "type": "text"})
    assert state.blocks[0]["text"] == ""


def test_notices_and_events_of_a_later_version_change_nothing() -> None:
    state = started("text")
    before = [dict(block) for block in state.blocks]
    for event in ("tool_progress", "retry", "status", "something_new"):
        state.apply(event, {"index": 0})
    assert state.blocks == before


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("block_delta", {"index": 0, "offset": 1, "text": "a gap"}),
        ("block_delta", {"index": 1, "offset": 0, "text": "another block"}),
        ("block_start", {"index": 1, "round": 1, "type": "text"}),
        ("block_stop", {"index": 1}),
        ("turn_complete", {"stop_reason": "end_turn", "usage": {}}),
    ],
)
def test_events_out_of_order_are_rejected(event: str, data: Json) -> None:
    with pytest.raises(StreamError):
        started("text").apply(event, data)


def test_repeated_text_is_rejected() -> None:
    state = started("text")
    state.apply("block_delta", {"index": 0, "offset": 0, "text": "once"})
    with pytest.raises(StreamError, match="offset 0 of block 0 came at offset 4"):
        state.apply("block_delta", {"index": 0, "offset": 0, "text": "once"})


def test_an_event_after_the_end_is_rejected() -> None:
    state = Assembler()
    state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})
    with pytest.raises(StreamError):
        state.apply("turn_complete", {"stop_reason": "end_turn", "usage": {}})


def started(kind: str) -> Assembler:
    state = Assembler()
    state.apply("block_start", {"index": 0, "round": 1, "type": kind})
    return state


# --- turns that wait for a person -----------------------------------------------------------------------------------


def asking(*waiting: str, calls: tuple[str, ...] = ("a", "b")) -> Assembler:
    state = Assembler()
    for index, identity in enumerate(calls):
        state.apply("block_start", {"index": index, "round": 1, "type": "tool_use", "id": identity, "name": "book"})
        state.apply("block_stop", {"index": index, "input": {}})
    state.apply("action_required", {"round": 1, "calls": [{"tool_use_id": identity} for identity in waiting]})
    return state


def result(state: Assembler, identity: str) -> None:
    index = len(state.blocks)
    state.apply("block_start", {"index": index, "round": 1, "type": "tool_result", "tool_use_id": identity})
    state.apply("block_stop", {"index": index, "is_error": False})


def test_a_call_waits_until_its_result_begins() -> None:
    state = asking("a", "b")
    result(state, "b")
    assert [action["tool_use_id"] for action in state.actions] == ["a"]
    assert state.waits
    result(state, "a")
    assert (state.actions, state.waits) == ([], False)


def test_a_turn_does_not_wait_while_another_call_runs() -> None:
    state = asking("a")
    assert not state.waits
    result(state, "b")
    assert state.waits


def test_a_reset_removes_waiting_calls_and_the_end_all_of_them() -> None:
    state = asking("a", "b")
    state.apply("reset", {"attempt": 2, "index": 1})
    assert [action["tool_use_id"] for action in state.actions] == ["a"]
    degraded = [{"what": "cut", "index": 3, "tool": "book"}]
    state.apply("turn_cancelled", {"stop_reason": "cancelled", "usage": {}, "degraded": degraded})
    assert (state.actions, state.waits, state.degraded) == ([], False, degraded)

"""The events of OpenAI's responses: each number follows from the log, whoever reads the stream and wherever the reader
starts.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.turns import ask, begun, call, result, sealed, text, turn_of
from tests.unit.stream.test_readers import TEXTS
from tests.unit.stream.writer import Writer
from turnstream.domain.cursor import START
from turnstream.domain.events import BlockDelta, BlockStart, BlockStop, Event, Reset, RoundStart, TurnEnd
from turnstream.domain.log import marks_of, next_event
from turnstream.domain.turns import Turn
from turnstream.extensions.openai_api.events import BAND, ResponseEvents
from turnstream.storage.runs.attempts import next_attempt
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.reader import TurnReader

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def events_in(frames: bytes) -> list[Json]:
    *blocks, rest = frames.split(b"\n\n")
    assert rest == b""
    events = [json.loads(block.partition(b"\ndata: ")[2]) for block in blocks]
    assert [block.partition(b"\n")[0] for block in blocks] == [f"event: {e['type']}".encode() for e in events]
    return events


def exploded(events: Sequence[Json]) -> list[tuple[int, str]]:
    """Returns each event with its number. Each character of a delta becomes an event with its own number."""
    found: list[tuple[int, str]] = []
    for event in events:
        number, delta = event["sequence_number"], event.get("delta")
        if delta is None:
            found.append((number, event["type"]))
        else:
            found += [(number - len(delta) + 1 + place, f"{event['item_id']} {c}") for place, c in enumerate(delta)]
    return found


def read(turn: Turn, part: int = 0, after: int = -1) -> list[Json]:
    """Returns the events of an ended turn, as each replica sends them."""
    events, view = ResponseEvents(turn, part, after), LiveView(turn)
    frames, cursor = events.begin(), START
    while step := next_event(view, cursor):
        event, cursor = step
        frames += events(event, cursor)
    return events_in(frames)


@pytest.fixture(autouse=True)
def attempts_are_counted() -> None:
    """Disables the shared fixture, because the numbers of events depend on the real distance between attempts."""


class Follower:
    """A client that reads one part of a turn from its start, and follows it through all changes of the turn."""

    def __init__(self, writer: Writer, part: int) -> None:
        self._writer = writer
        directory = writer.directories[0]
        view = directory.view(writer.rows)
        events = ResponseEvents(writer.rows, part, rows=lambda: self._reader.view.turn)
        self._reader = TurnReader(directory, view, self._load, START, events)
        self.events = events_in(events.begin())

    async def _load(self) -> Turn:
        return self._writer.rows

    async def read(self) -> None:
        for _ in range(20):
            if frames := self._reader.look():
                self.events += events_in(frames)
            elif self._reader.done or self._reader.fed:
                return
            else:
                await self._reader.renew()


@settings(max_examples=tries(50))
@given(st.lists(st.tuples(st.integers(0, 999), TEXTS, st.booleans()), min_size=20, max_size=80), st.data())
async def test_any_cut_and_resume_gives_the_same_sequence(
    acts: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    writer = Writer([Directory(), Directory()], replace(turn_of(status="queued", attempt=0), created_at=NOW))
    followers = [Follower(writer, part) for part in range(2)]
    for number, words, reads in acts:
        writer.write(number, words)
        writer.mirror()
        if reads:
            for follower in followers:
                await follower.read()
    writer.finish()
    for part, follower in enumerate(followers):
        await follower.read()
        whole = exploded(fresh := read(writer.rows, part))
        numbers = [number for number, _ in whole]
        assert numbers == sorted(set(numbers))
        seen = [event["sequence_number"] for event in follower.events]
        assert seen == sorted(seen)
        assert follower.events[-1] == fresh[-1]
        for after in data.draw(st.lists(st.sampled_from(seen), max_size=5)):
            rest = read(writer.rows, part, after)
            if rest and rest[0]["type"] == "response.in_progress" and after >= 1:
                assert after not in numbers, "what the client has was taken back"
                rest = rest[1:]
            assert exploded(rest) == [each for each in whole if each[0] > after]


def _frames(turn: Turn, *events: Event, part: int = 0, after: int = -1) -> tuple[ResponseEvents, list[Json]]:
    encoder = ResponseEvents(turn, part, after)
    frames = encoder.begin() + b"".join(encoder(event, START) for event in events)
    return encoder, events_in(frames)


def test_a_delta_that_a_client_has_half_of_is_cut() -> None:
    turn = replace(turn_of(text(content="ahoy \U0001f6a2 there"), rounds=[sealed()]), created_at=NOW)
    first = next(e for e in read(turn) if e["type"] == "response.output_text.delta")
    assert first["delta"] == "ahoy \U0001f6a2 there"
    half = read(turn, after=first["sequence_number"] - 6)
    assert half[0]["delta"] == " there"
    assert half[0]["sequence_number"] == first["sequence_number"]


def test_an_item_that_is_taken_back_ends_as_incomplete_and_its_place_is_not_used_again() -> None:
    turn = replace(turn_of(attempt=2), created_at=NOW, status="complete", stop_reason="end_turn")
    again = text(0, content="Hello.", attempt=2)
    _, events = _frames(
        replace(turn, blocks=(again,)),
        RoundStart(1, 1, 1, ()),
        BlockStart(1, 0, 1, "text", None, None),
        BlockDelta(0, 0, "Good"),
        Reset(2, 0),
        RoundStart(2, 1, 1, ()),
        BlockStart(2, 0, 1, "text", None, None),
        BlockStop(2, again),
        TurnEnd(2, "complete", "end_turn", {}, None),
    )
    items = [(e["type"], e["output_index"], e["item"].get("status")) for e in events if "item" in e]
    assert items == [
        ("response.output_item.added", 0, "in_progress"),
        ("response.output_item.done", 0, "incomplete"),
        ("response.output_item.added", 1, "in_progress"),
        ("response.output_item.done", 1, "completed"),
    ]
    ids = {e["item"]["id"] for e in events if "item" in e}
    assert len(ids) == 2, "the SDK refuses one item in two places"
    assert [item["id"][-2:] for item in events[-1]["response"]["output"]] == ["_2"]
    assert events[-1]["sequence_number"] > BAND


def test_an_item_with_less_text_kept_than_shown_continues_and_ends_behind_the_shown_text() -> None:
    kept = text(0, content="Good", interrupted=True)
    turn = replace(turn_of(kept, attempt=2), created_at=NOW, status="complete", stop_reason="end_turn")
    _, events = _frames(
        turn,
        RoundStart(1, 1, 1, ()),
        BlockStart(1, 0, 1, "text", None, None),
        BlockDelta(0, 0, "Good day"),
        Reset(2, 0),
        BlockStart(1, 0, 1, "text", None, None),
        BlockDelta(0, 0, "Good"),
        BlockStop(1, kept),
        TurnEnd(2, "complete", "end_turn", {}, None),
    )
    assert [e["delta"] for e in events if "delta" in e] == ["Good day"]
    assert {(e["output_index"], e["item"]["id"][-4:]) for e in events if "item" in e} == {(0, "_0_1")}
    numbers = [e["sequence_number"] for e in events]
    assert numbers == sorted(set(numbers))
    assert [e["text"] for e in events if e["type"] == "response.output_text.done"] == ["Good"]


def test_a_voided_sequence_number_is_answered_with_the_remaining_events() -> None:
    kept, again = text(0, content="Ahoy."), text(1, 2, content="Hello.", attempt=2)
    turn = turn_of(kept, again, rounds=[sealed(1), sealed(2, "end_turn", attempt=2)], status="complete", attempt=2)
    turn = replace(turn, created_at=NOW, stop_reason="end_turn")
    before = read(turn_of_round(turn, kept))
    snapshot, added, *_ = read(turn, after=before[-1]["sequence_number"] + 8)
    assert snapshot["type"] == "response.in_progress"
    assert [item["content"][0]["text"] for item in snapshot["response"]["output"]] == ["Ahoy."]
    assert added["type"] == "response.output_item.added"
    assert added["sequence_number"] == snapshot["sequence_number"] + 1


def turn_of_round(turn: Turn, *blocks: Any) -> Turn:
    return replace(turn, blocks=blocks, rounds=(*turn.rounds[:1], begun(2)), status="running", stop_reason=None)


def test_a_turn_that_waits_is_two_responses() -> None:
    blocks = call(0), result(1, attempt=2), text(2, 2, "Blue.", attempt=2)
    rounds = sealed(1), sealed(2, "end_turn", attempt=2)
    turn = turn_of(*blocks, rounds=rounds, asks=[ask(answer="result")], status="complete", attempt=2)
    turn = replace(turn, created_at=NOW, stop_reason="end_turn")
    first, second = read(turn, 0)[-1], read(turn, 1)
    assert (first["type"], len(first["response"]["output"])) == ("response.completed", 1)
    assert second[-1]["response"]["previous_response_id"] == first["response"]["id"]
    assert [e["sequence_number"] for e in second] == sorted(e["sequence_number"] for e in second)
    assert second[-1]["sequence_number"] > BAND, "the band is the attempt that wrote the events"
    assert read(replace(turn, status="waiting", blocks=blocks[:1], rounds=rounds[:1]), 0)[-1] != first


def test_the_marks_alone_give_the_same_response() -> None:
    turn = turn_of(text(content="ahoy"), rounds=[sealed(stop_reason="max_tokens")], status="complete")
    turn = replace(turn, created_at=NOW, stop_reason="max_tokens")
    events = ResponseEvents(turn)
    for mark in marks_of(turn):
        list(events.take(mark))
    assert events.response() == read(turn)[-1]["response"]
    assert events.response()["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("part", [0, 1])
def test_a_number_of_another_past_gets_the_response_as_it_is_and_all_its_events(part: int) -> None:
    blocks = call(0, attempt=500), result(1, attempt=900), text(2, 2, "Blue.", attempt=900)
    rounds = sealed(1, attempt=500), sealed(2, "end_turn", attempt=900)
    turn = turn_of(*blocks, rounds=rounds, asks=[ask(answer="result", attempt=500)], status="complete", attempt=900)
    turn = replace(turn, created_at=NOW, stop_reason="end_turn", lineage=(0, 500, 900))
    whole = read(turn, part)
    for attempt in 300, 700, 1200:
        known, *rest = read(turn, part, (attempt - 1) * BAND + 3)
        assert known["type"] == "response.in_progress"
        assert known["response"]["output"] == []
        assert exploded(rest) == exploded(whole)[2:]


def test_javascript_can_count_the_events_of_any_attempt() -> None:
    attempt = 0
    for _ in range(5_000):
        attempt = next_attempt(attempt)
    assert attempt * BAND < 2**53

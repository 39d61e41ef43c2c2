"""Decodes the stream of Responses event by event, including unknown and unexpected events."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from turnstream.domain.blocks import Block
from turnstream.extensions.openai.responses.wire import ResponsesWire
from turnstream.libraries.providers.transport.wire import BadStream
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import MessageDelta, MessageEnded, MessageStarted, Part, Unknown

Json = dict[str, Any]

CREATED: Json = {"type": "response.created", "response": {"id": "resp_1", "object": "response"}}
MESSAGE: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
CALL: Json = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": ""}
THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
SEARCH: Json = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "tides"}}


def frame(event: Json | bytes) -> bytes:
    return b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"


def added(item: Json, place: int = 0) -> Json:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def done(item: Json, place: int = 0) -> Json:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def delta(kind: str, text: str, place: int = 0, **members: Any) -> Json:
    return {"type": f"response.{kind}.delta", "output_index": place, "delta": text, **members}


def over(status: str = "completed", **members: Any) -> Json:
    return {"type": f"response.{status}", "response": {"status": status, **members}}


class Heard:
    """Decodes a stream of these events into blocks."""

    def __init__(
        self, *events: Json | bytes, whole: bytes | None = None, offered: frozenset[str] | None = None
    ) -> None:
        self.wire = ResponsesWire(seed=b"seed", offered=offered)
        self.parts: list[Part] = self.wire.feed(b"".join(map(frame, events)))
        self.parts += self.wire.end() if whole is None else self.wire.feed_whole(whole)
        self.accumulator = Accumulator(1, 1, 0)
        changes = [*self.accumulator.feed(self.parts), *self.accumulator.interrupt()]
        self.blocks = [change for change in changes if isinstance(change, Block)]

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(block.type, block.text) for block in self.blocks]

    @property
    def data(self) -> Json:
        (block,) = self.blocks
        found: Json = json.loads(block.data or "{}")
        return found


def text(words: str, **members: Any) -> Json:
    return {**MESSAGE, "content": [{"type": "output_text", "text": words, **members}]}


# --- the answer as a whole -----------------------------------------------------------------------------------


def test_an_answer_begins_once_and_ends_with_its_figures() -> None:
    heard = Heard(CREATED, {**CREATED, "type": "response.in_progress"}, over(usage={"input_tokens": 3}), text("late"))
    assert heard.parts == [
        MessageStarted({}, "resp_1"),
        MessageDelta("end_turn", {"input_tokens": 3}),
        MessageEnded(),
    ]
    assert heard.wire.ended
    assert not heard.wire.finished


def test_the_id_of_the_headers_goes_before_that_of_the_response() -> None:
    wire = ResponsesWire("req_1")
    assert wire.feed(frame(CREATED)) == [MessageStarted({}, "req_1")]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
        ({"incomplete_details": {"reason": "content_filter"}}, "refusal"),
        ({"incomplete_details": {"reason": "steered"}}, "steered"),
        ({}, "max_tokens"),
    ],
)
def test_an_incomplete_answer_says_why(members: Json, reason: str) -> None:
    assert Heard(CREATED, over("incomplete", **members)).accumulator.stop_reason == reason


def test_the_event_says_how_it_ended_where_the_response_does_not() -> None:
    heard = Heard({"type": "response.incomplete", "response": {}})
    assert heard.accumulator.stop_reason == "max_tokens"


def test_a_stream_that_ends_without_its_last_event_was_cut() -> None:
    heard = Heard(CREATED, delta("output_text", "Hi"), b"[DONE]")
    assert not heard.wire.ended
    assert [(block.text, block.interrupted) for block in heard.blocks] == [("Hi", True)]


def test_an_answer_that_was_not_streamed_is_read() -> None:
    body = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [text("Hi"), {**CALL, "arguments": "{}"}],
    }
    heard = Heard(whole=json.dumps(body).encode())
    assert heard.said == [("text", "Hi"), ("tool_use", "{}")]
    assert heard.accumulator.stop_reason == "tool_use"
    assert Heard(whole=b" ").parts == []


# --- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        ({"type": "error", "code": "server_error", "message": "No."}, {"code": "server_error", "message": "No."}),
        ({"type": "error", "error": {"message": "No."}}, {"error": {"message": "No."}}),
        ({"error": {"message": "No."}}, {"error": {"message": "No."}}),
        (over("failed", error={"code": "server_error"}), {"code": "server_error"}),
        (over("cancelled"), {"message": "The response has cancelled.", "code": "server_error"}),
    ],
)
def test_a_failure_is_decoded_from_its_event(event: Json, failure: Json) -> None:
    heard = Heard(CREATED, event, delta("output_text", "more"))
    assert heard.wire.failure == failure
    assert not heard.wire.ended
    assert heard.said == []


def test_a_failed_answer_keeps_its_usage() -> None:
    heard = Heard(over("failed", error={"code": "x"}, usage={"output_tokens": 2}))
    assert heard.accumulator.usage == {"output_tokens": 2}


@pytest.mark.parametrize("data", [b"<html>", b'{"type": "x"', b'{"type": 3, "new": }', b"\xff\xfe"])
def test_data_that_is_not_json_is_a_failure(data: bytes) -> None:
    assert isinstance(Heard(CREATED, data).wire.failure, BadStream)


def test_an_event_that_the_stream_ended_in_is_none() -> None:
    wire = ResponsesWire()
    wire.feed(frame(CREATED) + b'data: {"type": "response.comp')
    assert wire.end() == []
    assert wire.failure is None


def test_an_event_of_a_strange_shape_with_half_a_surrogate_pair_is_kept() -> None:
    (unknown,) = Heard(b'{"type":3,"new":"a\\ud83d"}').parts
    assert isinstance(unknown, Unknown)
    assert json.loads(unknown.raw) == {"type": 3, "new": "a\ufffd"}


def test_half_a_surrogate_pair_and_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    broken = b'{"type":"response.output_text.delta","output_index":0,"delta":"a\\ud83d\xff"}'
    assert Heard(CREATED, added(MESSAGE), broken, over()).said == [("text", "a��")]


# --- unexpected events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.brand_new.delta", "delta": "x"},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.output_item.done", "item": {"type": 3}},
        {"type": "keepalive"},
        {"new": 1},
        [1],
    ],
)
def test_an_unknown_event_is_kept(event: Any) -> None:
    heard = Heard(CREATED, event, added(MESSAGE), delta("output_text", "Hi"), over())
    (unknown,) = [part for part in heard.parts if isinstance(part, Unknown)]
    assert json.loads(unknown.raw) == event
    assert heard.said == [("text", "Hi")]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.web_search_call.searching", "output_index": 0},
        {"type": "response.output_text.done", "text": "x"},
        {"type": "response.shell_call_output_content.delta", "delta": {"stdout": "x"}},
        {"type": "response.output_text.delta", "delta": None},
    ],
)
def test_progress_events_of_items_are_ignored(event: Json) -> None:
    assert Heard(event).parts == []


def test_an_unknown_item_is_a_block_that_holds_it() -> None:
    item = {"type": "dream", "id": "dr_1", "content": {"of": "sheep"}}
    heard = Heard(CREATED, added(item), done(item), over())
    assert heard.said == [("openai_dream", "")]
    assert heard.data == {"type": "openai_dream", "provider": "openai-responses", "item": item}


def test_members_of_another_type_than_ever_seen_do_not_lose_the_item() -> None:
    odd = {**MESSAGE, "content": "plain words"}
    heard = Heard(CREATED, added(MESSAGE), delta("output_text", "Hi"), done(odd), over())
    assert heard.said == [("text", "Hi")]
    assert not heard.blocks[0].interrupted


# --- messages ------------------------------------------------------------------------------------------------


def test_each_piece_of_a_message_is_a_text_of_its_own() -> None:
    heard = Heard(
        CREATED,
        added(MESSAGE),
        delta("output_text", "a"),
        delta("output_text", "b"),
        delta("output_text", "c", content_index=1),
        done({**MESSAGE, "content": [{"text": "ab"}, {"text": "cd"}]}),
        over(),
    )
    assert heard.said == [("text", "ab"), ("text", "cd")]


def test_a_refusal_is_a_text_and_a_reason_to_stop() -> None:
    refusal = {**MESSAGE, "content": [{"type": "refusal", "refusal": "No, never."}]}
    for events in ([delta("refusal", "No, ")], []):
        heard = Heard(CREATED, added(MESSAGE), *events, done(refusal), over())
        assert heard.said == [("text", "No, never.")]
        assert heard.accumulator.stop_reason == "refusal"


def test_sources_stay_with_their_text_each_once() -> None:
    noted = {"type": "response.output_text.annotation.added", "output_index": 0, "annotation": {"n": 1}}
    heard = Heard(
        CREATED,
        noted,
        delta("output_text", "Hi"),
        {**noted, "annotation": {"n": 2}},
        done(text("Hi", annotations=[{"n": 1}, {"n": 2}, {"n": 3}])),
        {**noted, "annotation": {"n": 4}},
        over(),
    )
    assert heard.data["annotations"] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_the_phase_of_a_message_is_kept() -> None:
    heard = Heard(CREATED, done({**text("Hi"), "phase": "commentary"}), over())
    assert heard.data == {"type": "text", "text": "", "provider": "openai-responses", "phase": "commentary"}


def test_a_message_that_says_nothing_is_no_block() -> None:
    assert Heard(CREATED, added(MESSAGE), done(text("")), over()).blocks == []
    assert Heard(CREATED, added(MESSAGE), over()).blocks == []


def test_deltas_of_an_unannounced_item_are_read_and_those_of_a_closed_item_are_not() -> None:
    heard = Heard(
        delta("reasoning_text", "Hm"),
        delta("output_text", "Hi", 1),
        delta("function_call_arguments", "{}", 2),
        done(text("Hi"), 1),
        delta("output_text", " there", 1),
        over(),
    )
    assert heard.said == [("thinking", "Hm"), ("text", "Hi")]
    assert heard.blocks[0].interrupted, "its item never came, so it cannot go back"


def test_an_item_in_the_place_of_one_that_is_open_ends_it() -> None:
    heard = Heard(CREATED, added(MESSAGE), delta("output_text", "a"), added({**MESSAGE, "id": "msg_2"}), over())
    assert [(block.text, block.interrupted) for block in heard.blocks] == [("a", False)]


def test_items_that_share_one_place_are_each_read_once() -> None:
    heard = Heard(
        CREATED, done(THOUGHT), done(text("a")), done(text("b")), over(output=[THOUGHT, text("a"), text("b")])
    )
    assert heard.said == [("thinking", ""), ("text", "a"), ("text", "b")]


def test_streamed_text_that_differs_from_the_final_form_stays() -> None:
    assert Heard(CREATED, added(MESSAGE), delta("output_text", "a"), done(text("b")), over()).said == [("text", "a")]


# --- numbers of pieces ---------------------------------------------------------------------------------------


def reasoning(*content: str, summary: Sequence[str] = ()) -> Json:
    pieces = [{"type": "reasoning_text", "text": words} for words in content]
    return {**THOUGHT, "summary": [{"type": "summary_text", "text": words} for words in summary], "content": pieces}


def announced(place: int, number: int | None, kind: str = "content_part", **members: Any) -> Json:
    name = "summary_index" if "summary" in kind else "content_index"
    return {"type": f"response.{kind}.added", "output_index": place, name: number, **members}


def test_a_server_that_counts_pieces_over_the_whole_answer_is_read_once() -> None:
    """vLLM and Bedrock number the pieces of gpt-oss in this way."""
    answer = [reasoning("Hm, so."), text("Hi you.")]
    heard = Heard(
        CREATED,
        added(THOUGHT),
        announced(0, 0),
        announced(0, 0, "reasoning_part"),
        delta("reasoning_text", "Hm, ", content_index=0),
        delta("reasoning_text", "so.", content_index=0),
        {"type": "response.reasoning_text.done", "output_index": 0, "content_index": 0, "text": "Hm, so."},
        done(answer[0]),
        added(MESSAGE, 1),
        announced(1, 1),
        delta("output_text", "Hi ", 1, content_index=1),
        delta("output_text", "you.", 1, content_index=1),
        {"type": "response.output_text.done", "output_index": 1, "content_index": 1, "text": "Hi you."},
        done(answer[1], 1),
        over(output=answer),
    )
    assert heard.said == [("thinking", "Hm, so."), ("text", "Hi you.")]
    assert heard.accumulator.unknown == []


def test_a_server_that_counts_deltas_and_announces_a_message_elsewhere_is_read_once() -> None:
    """vLLM numbers the pieces of other models in this way. In addition, the last event of the answer has other ids."""
    answer = [reasoning("Hm, so."), text("Hi you.")]
    begun = {**MESSAGE, "id": THOUGHT["id"]}
    heard = Heard(
        CREATED,
        added(THOUGHT),
        announced(0, 0, item_id="rs_1"),
        delta("reasoning_text", "Hm, ", content_index=1, item_id="rs_1"),
        delta("reasoning_text", "so.", content_index=2, item_id="rs_1"),
        {"type": "response.reasoning_text.done", "output_index": 0, "content_index": 3, "item_id": "rs_1"},
        done(answer[0]),
        added(begun),
        announced(1, 0, item_id="msg_1"),
        delta("output_text", "Hi ", 1, content_index=1, item_id="msg_1"),
        delta("output_text", "you.", 1, content_index=2, item_id="msg_1"),
        {"type": "response.output_text.done", "output_index": 1, "content_index": 3, "item_id": "msg_1"},
        {"type": "response.content_part.done", "output_index": 1, "content_index": 4, "item_id": "msg_1"},
        done(answer[1], 1),
        over(output=[{**item, "id": f"other_{item['id']}"} for item in answer]),
    )
    assert heard.said == [("thinking", "Hm, so."), ("text", "Hi you.")]


@pytest.mark.parametrize("kind", ["output_text", "reasoning_summary_text", "reasoning_text"])
def test_a_thought_under_another_name_than_its_final_form_is_read_once(kind: str) -> None:
    final = {**THOUGHT, "content": [{"type": "output_text", "text": "Hm, so."}]}
    heard = Heard(CREATED, added(THOUGHT), delta(kind, "Hm, "), done(final), over(output=[final]))
    assert heard.said == [("thinking", "Hm, so.")]


def test_items_without_a_place_are_distinguished_by_their_ids() -> None:
    first, second = ({**CALL, "id": f"fc_{id}", "call_id": id, "arguments": f'{{"q":"{id}"}}'} for id in "ab")

    def sent(event: Json) -> Json:
        return {name: value for name, value in event.items() if name != "output_index"}

    heard = Heard(
        CREATED,
        *(sent(added({**call, "arguments": ""})) for call in (first, second)),
        sent(delta("function_call_arguments", '{"q":"b', item_id="fc_b")),
        sent(delta("function_call_arguments", '{"q":"a', item_id="fc_a")),
        sent(done(second)),
        sent(done(first)),
        over(output=[first, second]),
    )
    assert [(block.tool_use_id, block.text) for block in heard.blocks] == [("a", '{"q":"a"}'), ("b", '{"q":"b"}')]


def test_a_message_without_a_beginning_behind_a_thought_without_one_is_an_item_of_its_own() -> None:
    heard = Heard(delta("reasoning_text", "Hm"), delta("output_text", "Hi"), over())
    assert heard.said == [("thinking", "Hm"), ("text", "Hi")]


def test_pieces_that_are_not_announced_begin_with_a_new_number_or_behind_an_end() -> None:
    content = [{"text": "ab"}, {"text": "cd"}, {"text": "e"}]
    heard = Heard(
        CREATED,
        added(MESSAGE),
        delta("output_text", "ab", content_index=4),
        delta("output_text", "c", content_index=5),
        delta("output_text", "d", content_index=5),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 5},
        delta("output_text", "e", content_index=5),
        done({**MESSAGE, "content": content}),
        over(),
    )
    assert heard.said == [("text", "ab"), ("text", "cd"), ("text", "e")]


def test_a_piece_that_was_not_streamed_is_added_and_one_that_differs_is_not() -> None:
    streamed = (added(MESSAGE), announced(0, 1), delta("output_text", "b", content_index=1))
    content = [{"text": "a"}, {"text": "b"}]
    assert Heard(CREATED, *streamed, done({**MESSAGE, "content": content}), over()).said == [
        ("text", "b"),
        ("text", "a"),
    ]
    content = [{"text": "x"}, {"refusal": "No."}]
    heard = Heard(CREATED, *streamed, done({**MESSAGE, "content": content}), over())
    assert heard.said == [("text", "b"), ("text", "No.")]


# Returns the number of a piece from three counts: the earlier pieces of the item, the earlier pieces of the answer, and
# the earlier deltas.
Numbers = Callable[[int, int, int], int | None]


def shifted_random(*before: int) -> int:
    return hash(before) % 7


NUMBERINGS: dict[str, Numbers] = {
    "within the item": lambda in_item, in_answer, deltas: in_item,
    "over the answer": lambda in_item, in_answer, deltas: in_answer,
    "with every delta": lambda in_item, in_answer, deltas: deltas,
    "from one": lambda in_item, in_answer, deltas: in_item + 1,
    "always zero": lambda in_item, in_answer, deltas: 0,
    "none": lambda in_item, in_answer, deltas: None,
    "at random": shifted_random,
}
PIECES = st.lists(st.lists(st.sampled_from(["a", "b ", "ab", "\n"]), min_size=1, max_size=3), min_size=1, max_size=3)
ITEMS = st.lists(
    st.tuples(st.sampled_from(["output_text", "reasoning_text", "reasoning_summary_text"]), PIECES), max_size=4
)


@given(
    ITEMS,
    st.sampled_from(list(NUMBERINGS)),
    st.sampled_from(["announced", "ended", "both"]),
    st.sampled_from(["items", "answer", "items and answer", "nothing"]),
)
@settings(max_examples=tries(300))
def test_no_numbering_of_pieces_changes_the_blocks(
    items: list[tuple[str, list[list[str]]]], numbering: str, marked: str, finals: str
) -> None:
    events: list[Json] = [CREATED]
    answer: list[Json] = []
    expected: list[tuple[str, str]] = []
    number, in_answer, deltas = NUMBERINGS[numbering], count(), count()
    for place, (kind, pieces) in enumerate(items):
        words = ["".join(piece) for piece in pieces]
        is_text, is_summary = kind == "output_text", kind == "reasoning_summary_text"
        item = {**(MESSAGE if is_text else THOUGHT), "id": f"item_{place}"}
        whole = (
            {**item, "content": [{"text": each} for each in words]}
            if is_text
            else {**reasoning(*([] if is_summary else words), summary=words if is_summary else ()), "id": item["id"]}
        )
        answer.append(whole)
        expected += [("text", each) for each in words] if is_text else [("thinking", "\n\n".join(words))]
        events.append(added(item, place))
        index, part = ("summary_index", "reasoning_summary_part") if is_summary else ("content_index", "content_part")
        for in_item, piece in enumerate(pieces):
            so_far = next(in_answer)
            mark = {"output_index": place, "item_id": item["id"], index: number(in_item, so_far, next(deltas))}
            if marked != "ended":
                events.append({"type": f"response.{part}.added", **mark})
            fixed = number(in_item, so_far, 0)
            for each in piece:
                # If each delta has its own number, only the announcements separate the pieces.
                given = number(in_item, so_far, next(deltas)) if marked != "ended" else fixed
                events.append(delta(kind, each, place, **{index: given}))
            if marked != "announced":
                events.append({"type": f"response.{kind}.done", **mark})
        if "items" in finals:
            events.append(done(whole, place))
    heard = Heard(*events, over(output=answer if "answer" in finals else None))
    assert heard.said == expected


# --- thoughts ------------------------------------------------------------------------------------------------


def test_a_thought_is_its_summary_and_keeps_its_item_as_it_came() -> None:
    item = b'{"type":"reasoning","id":"rs_1","summary":[{"text":"a"},{"text":"b"}],"encrypted_content":"e","n": 1e2}'
    heard = Heard(
        CREATED,
        added(THOUGHT),
        delta("reasoning_summary_text", "a"),
        delta("reasoning_summary_text", "b", summary_index=1),
        b'{"type":"response.output_item.done","output_index":0,"item":' + item + b"}",
        over(),
    )
    assert heard.said == [("thinking", "a\n\nb")]
    assert item.decode() in (heard.blocks[0].data or "")
    assert heard.data["signature"] == "openai-responses:rs_1"


def test_a_thought_that_was_cut_has_no_signature() -> None:
    heard = Heard(CREATED, added(THOUGHT), delta("reasoning_text", "Hm"))
    assert heard.blocks[0].interrupted
    assert heard.data["signature"] == ""


# --- calls ---------------------------------------------------------------------------------------------------


def test_calls_are_distinguished_by_their_place_and_keep_their_ids() -> None:
    second = {**CALL, "id": "fc_2", "call_id": "b"}
    heard = Heard(
        CREATED,
        added(CALL),
        added(second, 1),
        delta("function_call_arguments", '{"q":', 1),
        delta("function_call_arguments", '{"p":1}'),
        delta("function_call_arguments", "2}", 1),
        done({**CALL, "arguments": '{"p":1}'}),
        done({**second, "arguments": '{"q":2}'}, 1),
        over(),
    )
    assert [(b.tool_use_id, b.name, b.text, b.data) for b in heard.blocks] == [
        ("a", "look", '{"p":1}', None),
        ("b", "look", '{"q":2}', None),
    ]
    assert heard.accumulator.stop_reason == "tool_use"


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    (block,) = Heard(CREATED, done({**CALL, "arguments": arguments}), over()).blocks
    assert block.is_call
    assert json.loads(block.text or "{}") == {}


def test_arguments_that_are_an_object_are_its_json() -> None:
    assert Heard(CREATED, done({**CALL, "arguments": {"q": 1}}), over()).said == [("tool_use", '{"q":1}')]


def test_a_call_without_an_id_or_with_anothers_gets_one_of_its_own_that_is_always_the_same() -> None:
    nameless = {"type": "function_call", "arguments": "{}"}
    once, again = (Heard(CREATED, done(CALL), done(CALL, 1), done(nameless, 2), over()) for _ in range(2))
    ids = [block.tool_use_id for block in once.blocks]
    assert ids[0] == "a"
    assert len({*ids}) == 3
    assert [block.tool_use_id for block in again.blocks] == ids
    assert once.blocks[2].name == "unnamed"


def test_further_members_of_a_call_are_kept() -> None:
    call = {**CALL, "arguments": "{}", "namespace": "web", "caller": {"type": "program"}, "new": None}
    heard = Heard(CREATED, done(call), over())
    assert heard.data["item"] == {"namespace": "web", "caller": {"type": "program"}}


@pytest.mark.parametrize(
    ("events", "is_call"),
    [
        ([added(CALL), delta("function_call_arguments", '{"q":1}')], True),
        ([added(CALL), delta("function_call_arguments", '{"q":')], False),
        ([added(CALL), done({**CALL, "arguments": "{}", "status": "incomplete"})], False),
        ([added(CALL)], False),
    ],
)
def test_a_call_without_an_end_event_is_complete_if_its_arguments_are(events: list[Json], is_call: bool) -> None:
    (block,) = Heard(CREATED, *events, over("incomplete")).blocks
    assert block.is_call == is_call


def test_the_last_event_completes_items_that_are_open_or_were_not_sent() -> None:
    whole = {**CALL, "arguments": '{"q":1}'}
    begun = (done(THOUGHT), added(CALL, 1), delta("function_call_arguments", '{"q', 1))
    heard = Heard(CREATED, *begun, over(output=[THOUGHT, whole, text("Hi")]))
    assert heard.said == [("thinking", ""), ("tool_use", '{"q":1}'), ("text", "Hi")]


def test_the_words_of_a_custom_call_are_the_input_of_one_member() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "a", "name": "sql", "input": ""}
    heard = Heard(
        CREATED,
        added(custom),
        delta("custom_tool_call_input", 'select "a'),
        done({**custom, "input": 'select "a"\n'}),
        over(),
    )
    assert json.loads(heard.blocks[0].text) == {"input": 'select "a"\n'}
    assert heard.data["item"] == {"type": "custom_tool_call"}
    assert Heard(CREATED, done({**custom, "input": None}), over()).blocks[0].text == '{"input":""}'


# --- tools of the provider -----------------------------------------------------------------------------------


def test_a_tool_of_the_provider_is_a_call_and_a_result_that_holds_the_item() -> None:
    asked, result = Heard(CREATED, added({**SEARCH, "action": None}), done(SEARCH), over()).blocks
    assert (asked.type, asked.name, asked.tool_use_id) == ("server_tool_use", "web_search", "ws_1")
    assert json.loads(asked.text) == {"action": {"query": "tides"}}
    assert (result.type, result.tool_use_id) == ("web_search_tool_result", "ws_1")
    assert json.loads(result.data or "")["item"] == SEARCH


def test_the_arguments_of_a_remote_tool_are_its_input_as_they_stream() -> None:
    call = {"type": "mcp_call", "id": "mcp_1", "name": "shorten", "arguments": '{"url":"x"}', "output": "y"}
    asked, result = Heard(
        CREATED, added({**call, "arguments": ""}), delta("mcp_call_arguments", '{"url"'), done(call), over()
    ).blocks
    assert (asked.name, asked.text) == ("shorten", '{"url":"x"}')
    assert result.type == "mcp_tool_result"


@pytest.mark.parametrize("id", ["s", None])
def test_a_call_whose_result_is_an_item_of_its_own_is_paired_with_it(id: str | None) -> None:
    call = {"type": "tool_search_call", "id": "tsc_1", "call_id": id, "arguments": {"paths": ["x"]}}
    output: Json = {"type": "tool_search_output", "id": "tso_1", "call_id": id, "tools": []}
    asked, result = Heard(CREATED, done(call), done(output, 1), over()).blocks
    assert asked.tool_use_id == result.tool_use_id == (id or "tsc_1")
    assert (asked.name, result.type) == ("tool_search", "tool_search_tool_result")
    assert json.loads(asked.data or "")["item"] == call


def test_an_output_that_nothing_asked_for_is_kept() -> None:
    heard = Heard(CREATED, done({"type": "program_output", "id": "po_1"}), over())
    assert heard.said == [("program_tool_result", "")]
    assert "tool_use_id" not in heard.data


def test_an_item_names_the_thought_that_led_to_it() -> None:
    heard = Heard(CREATED, done(THOUGHT), done(SEARCH, 1), over())
    assert json.loads(heard.blocks[-1].data or "")["thought"] == "rs_1"


def test_an_image_call_has_its_prompt_as_input() -> None:
    image = {"type": "image_generation_call", "id": "ig_1", "revised_prompt": "a fox", "result": "iVBO"}
    assert json.loads(Heard(CREATED, done(image), over()).blocks[0].text) == {"revised_prompt": "a fox"}


def test_a_nul_in_an_item_can_be_stored() -> None:
    heard = Heard(CREATED, done({**SEARCH, "action": {"query": "a\x00"}}), over())
    assert all("\x00" not in (block.data or "") + block.text for block in heard.blocks)


# --- calls of tools that the request did not offer -------------------------------------------------------------------

XAI: Json = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "xs_1", "name": "x_search", "input": ""}
NONE_OFFERED = frozenset[str]()


@pytest.mark.parametrize("call", [XAI, {**CALL, "name": "x_search", "call_id": "xs_1"}], ids=lambda call: call["type"])
@pytest.mark.parametrize("behind", [MESSAGE, THOUGHT, SEARCH], ids=lambda item: item["type"])
def test_an_unoffered_call_is_the_servers_if_the_answer_continues_behind_it(call: Json, behind: Json) -> None:
    member = "input" if call is XAI else "arguments"
    kind = "custom_tool_call_input" if call is XAI else "function_call_arguments"
    final = {**call, member: '{"q":"tides"}', "status": "completed"}
    events = [added(call), delta(kind, '{"q":"ti'), delta(kind, 'des"}'), done(final), added(behind, 1)]
    heard = Heard(CREATED, *events, done(behind, 1), over(), offered=frozenset({"look"}))
    asked, result = heard.blocks[:2]
    assert (asked.type, asked.name, asked.tool_use_id) == ("server_tool_use", "x_search", "xs_1")
    assert json.loads(asked.text) == ({"input": '{"q":"tides"}'} if call is XAI else {"q": "tides"})
    assert (result.type, result.tool_use_id) == ("x_search_tool_result", "xs_1")
    assert json.loads(result.data or "")["item"] == final
    assert heard.accumulator.stop_reason == "end_turn"


def test_a_call_of_the_server_may_end_after_later_parts_of_the_answer() -> None:
    final = {**XAI, "input": "tides", "status": "completed"}
    events = [added(XAI), added(MESSAGE, 1), delta("custom_tool_call_input", "tides"), done(final)]
    heard = Heard(CREATED, *events, delta("output_text", "High.", 1), over(), offered=NONE_OFFERED)
    assert heard.said == [("server_tool_use", '{"input":"tides"}'), ("x_search_tool_result", ""), ("text", "High.")]


@pytest.mark.parametrize("offered", [NONE_OFFERED, frozenset({"x_search"}), None])
def test_a_call_at_the_end_of_an_answer_is_one_of_the_model(offered: frozenset[str] | None) -> None:
    events = [done(text("Let me see.")), done({**CALL, "name": "x_search", "arguments": "{}"}, 1)]
    heard = Heard(CREATED, *events, over(), offered=offered)
    assert heard.said == [("text", "Let me see."), ("tool_use", "{}")]
    assert heard.accumulator.stop_reason == "tool_use"


def test_a_call_that_was_offered_is_one_of_the_model_wherever_it_is() -> None:
    events = [done({**CALL, "arguments": "{}"}), done(text("Wait."), 1)]
    heard = Heard(CREATED, *events, over(), offered=frozenset({"look"}))
    assert heard.said == [("tool_use", "{}"), ("text", "Wait.")]
    assert heard.accumulator.stop_reason == "tool_use"


# --- items that end late ---------------------------------------------------------------------------------------------


def test_an_item_that_ends_after_later_ones_began_names_how_many_blocks_it_belongs_before() -> None:
    lists: list[Json] = [{"type": "mcp_list_tools", "id": f"mcpl_{number}", "tools": []} for number in range(3)]
    events = [*(added(each, place) for place, each in enumerate(lists)), done(lists[2], 2), done(text("Hi"), 3)]
    output = [*lists, text("Hi")]
    heard = Heard(CREATED, *events, over(output=output))
    ahead = [json.loads(block.data or "{}").get("ahead", 0) for block in heard.blocks]
    assert [block.type for block in heard.blocks] == ["openai_mcp_list_tools", "text", *["openai_mcp_list_tools"] * 2]
    assert ahead == [0, 0, 2, 2]

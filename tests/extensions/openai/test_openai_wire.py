"""Decodes chunks of Chat Completions into parts. The chunks come from OpenAI and from compatible servers."""

import json
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pytest

from turnstream.domain.blocks import Block
from turnstream.extensions.openai.chat.wire import ChatWire
from turnstream.libraries.providers.transport.wire import BadStream
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
    Unknown,
)

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def chunk(delta: Json | None = None, finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return frame({"id": "chatcmpl-1", "choices": [choice], **members})


def frame(data: Any) -> bytes:
    said = data if isinstance(data, bytes) else json.dumps(data).encode()
    return b"data: " + said + b"\n\n"


def text(words: str) -> bytes:
    return chunk({"content": words})


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Json:
    """Returns a piece of a call. Members that are None are left out."""
    function = {"name": name, "arguments": arguments}
    said = {"index": index, "id": id, "function": {k: v for k, v in function.items() if v is not None}}
    return {k: v for k, v in said.items() if v is not None}


def calls(*pieces: Json) -> bytes:
    return chunk({"tool_calls": list(pieces)})


class Heard:
    def __init__(self, *frames: bytes, seed: bytes = b"seed") -> None:
        self.wire = ChatWire("req_1", seed)
        self.accumulator = Accumulator(1, 1, 0)
        self.parts: list[Part] = [*self.wire.feed(b"".join(frames)), *self.wire.end()]
        changes = [*self.accumulator.feed(self.parts), *self.accumulator.interrupt()]
        self.rows = [change for change in changes if isinstance(change, Block)]

    @property
    def blocks(self) -> list[tuple[str, str]]:
        return [(row.type, row.text) for row in self.rows]

    @property
    def calls(self) -> list[tuple[str | None, str | None, str]]:
        return [(row.tool_use_id, row.name, row.text) for row in self.rows if row.type == "tool_use"]


# --- complete answers ----------------------------------------------------------------------------------------


def test_a_text_is_opened_streamed_closed_and_ended() -> None:
    assert Heard(text("Hel"), text("lo"), chunk(finish="stop"), DONE).parts == [
        MessageStarted({}, "req_1", None),
        BlockOpened(0, "text"),
        BlockText(0, "Hel"),
        BlockText(0, "lo"),
        BlockClosed(0),
        MessageDelta("end_turn", {}),
        MessageEnded(),
    ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("model_length", "model_context_window_exceeded"),
        ("tool_calls", "end_turn"),  # the reason names calls, but the answer has none
        ("something_new", "something_new"),
    ],
)
def test_a_finish_reason_becomes_our_stop_reason(said: str, reason: str) -> None:
    heard = Heard(text("a"), chunk(finish=said), DONE)
    assert heard.accumulator.stop_reason == reason
    assert heard.accumulator.ended


@pytest.mark.parametrize("said", ["stop", "tool_calls", "function_call"])
def test_an_answer_with_calls_stops_for_its_tools_for_any_finish_reason(said: str) -> None:
    heard = Heard(calls(piece(0, "a", "f", "{}")), chunk(finish=said), DONE)
    assert heard.accumulator.stop_reason == "tool_use"


def test_the_last_of_several_reasons_counts() -> None:
    heard = Heard(text("a"), chunk(finish="stop"), chunk(finish="length"), DONE)
    assert heard.accumulator.stop_reason == "max_tokens"


def test_a_refusal_is_a_text_and_a_reason_to_stop() -> None:
    heard = Heard(chunk({"refusal": "No, "}), chunk({"refusal": "thanks."}), chunk(finish="stop"), DONE)
    assert heard.blocks == [("text", "No, thanks.")]
    assert heard.accumulator.stop_reason == "refusal"


def test_the_parts_are_the_same_for_all_cuts_of_the_network() -> None:
    body = text("é") + calls(piece(0, "a", "f", '{"x":'), piece(0, arguments="1}")) + chunk(finish="stop") + DONE
    wire, parts = ChatWire("req_1"), list[Part]()
    for start, size in zip(range(len(body)), repeat(1), strict=False):
        parts += wire.feed(body[start : start + size])
    assert parts == ChatWire("req_1").feed(body)


def test_the_call_is_known_by_the_id_of_the_answer_where_no_header_says_one() -> None:
    assert ChatWire().feed(text("a"))[0] == MessageStarted({}, "chatcmpl-1")
    assert ChatWire().feed(frame({"choices": []}))[0] == MessageStarted({}, None)


def test_further_members_of_the_answer_are_kept() -> None:
    heard = Heard(chunk({}, provider="Novita", model="m", obfuscation="xyz", service_tier=None))
    assert heard.accumulator.data == '{"provider":"Novita"}'


# --- thoughts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning", "reasoning_text"])
def test_thoughts_are_read_from_any_of_their_members_and_signed_with_it(member: str) -> None:
    heard = Heard(chunk({member: "Let me "}), chunk({member: "see."}), text("Yes."), chunk(finish="stop"), DONE)
    assert heard.blocks == [("thinking", "Let me see."), ("text", "Yes.")]
    assert json.loads(heard.rows[0].data or "")["signature"] == f"openai:{member}"


def test_a_thought_in_two_members_of_a_delta_is_read_once() -> None:
    heard = Heard(chunk({"reasoning": "a", "reasoning_content": "a", "reasoning_details": [{"text": "a"}]}))
    assert heard.blocks == [("thinking", "a")]


def test_thoughts_may_be_nowhere_but_in_their_details() -> None:
    details = [{"type": "reasoning.summary", "summary": "I "}, {"type": "reasoning.text", "text": "think."}]
    heard = Heard(chunk({"reasoning_details": details}), chunk({"reasoning_details": [{"text": None}]}))
    assert heard.blocks == [("thinking", "I think.")]
    assert "reasoning_details" not in json.loads(heard.rows[0].data or "")


def test_signed_details_are_kept_put_together_from_their_pieces() -> None:
    one = {"type": "reasoning.text", "text": "Let ", "index": 0, "signature": None}
    two = {"type": "reasoning.text", "text": "me.", "index": 0, "signature": "sig", "format": None}
    secret = {"type": "reasoning.encrypted", "data": "gAAA", "index": 1}
    heard = Heard(
        *(chunk({"reasoning": d["text"], "reasoning_details": [d]}) for d in (one, two)),
        chunk({"reasoning_details": [secret]}),
        text("Yes."),
    )
    data = json.loads(heard.rows[0].data or "")
    assert data["reasoning_details"] == [
        {"type": "reasoning.text", "text": "Let me.", "index": 0, "signature": "sig"},
        secret,
    ]
    assert heard.blocks == [("thinking", "Let me."), ("text", "Yes.")]


def test_encrypted_details_without_a_word_are_a_thought_of_their_own() -> None:
    heard = Heard(text("Yes."), chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA"}]}))
    assert heard.blocks == [("text", "Yes."), ("thinking", "")]


def test_content_may_be_a_list_of_texts_and_thoughts() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, {"type": "reference"}]},
        {"type": "thinking", "thinking": "m."},
        {"type": "text", "text": "Yes."},
        {"type": "reference", "reference_ids": [1]},
    ]
    assert Heard(chunk({"content": content})).blocks == [("thinking", "Hmm."), ("text", "Yes.")]


def test_empty_pieces_open_nothing() -> None:
    nothing: Json = {
        "role": "assistant",
        "content": "",
        "reasoning": "",
        "refusal": None,
        "tool_calls": [],
        "annotations": [],
    }
    assert Heard(chunk(nothing), chunk({"content": None}), chunk({"content": []})).blocks == []


# --- sources -------------------------------------------------------------------------------------------------


def test_sources_are_kept_with_the_text_they_belong_to() -> None:
    source = {"type": "url_citation", "url_citation": {"url": "https://example.org"}}
    heard = Heard(text("See "), chunk({"content": "this.", "annotations": [source]}), chunk(finish="stop"), DONE)
    assert heard.blocks == [("text", "See this.")]
    assert json.loads(heard.rows[0].data or "")["annotations"] == [source]


def test_sources_without_a_text_are_not_lost() -> None:
    heard = Heard(chunk({"reasoning": "a"}), chunk({"annotations": [{"type": "url_citation"}]}))
    assert heard.blocks == [("thinking", "a"), ("text", "")]


# --- calls ---------------------------------------------------------------------------------------------------


def test_a_call_comes_in_pieces() -> None:
    heard = Heard(
        text("Look."),
        calls(piece(0, "call_a", "look", "")),
        calls(piece(0, arguments='{"q":')),
        calls(piece(0, arguments='"x"}')),
        chunk(finish="tool_calls"),
        DONE,
    )
    assert heard.parts[4:] == [
        BlockOpened(1, "tool_use", None, "", "call_a", "look"),
        BlockText(1, '{"q":'),
        BlockText(1, '"x"}'),
        BlockClosed(1),
        MessageDelta("tool_use", {}),
        MessageEnded(),
    ]


A, B = ("a", "f", '{"n":1}'), ("b", "g", '{"n":2}')


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, *A), piece(1, *B)],
        [piece(0, *A), piece(0, *B)],
        [piece(None, *A), piece(None, *B)],
        [piece(0, "a", "f"), piece(1, "b", "g"), piece(0, arguments='{"n":1}'), piece(1, arguments='{"n":2}')],
        [piece(0, "a", "f", '{"n"'), piece(1, "b", "g", '{"n"'), piece(0, arguments=":1}"), piece(1, arguments=":2}")],
        [piece(None, "a", "f", '{"n"'), piece(None, "a", "f", ":1}"), piece(None, *B)],
        [piece(None, "a", "f", '{"n"'), piece(None, arguments=":1}"), piece(None, *B)],
        [piece(0, "a", "f", '{"n"'), piece(0, "a", "f", ":1}"), piece(1, *B)],
        [piece(0, "a", "f", '{"n"'), piece(0, "other", None, ":1}"), piece(1, *B)],
        [piece(0, "a"), piece(0, None, "f", '{"n":1}'), piece(1, "b"), piece(1, None, "g"), piece(1, arguments=B[2])],
        [piece(0, "a", None, '{"n":'), piece(0, None, "f", "1}"), piece(1, *B)],
        [piece(0, "a", "f", {"n": 1}), piece(1, "b", "g", {"n": 2})],
        [piece("0", *A), piece("1", *B)],  # type: ignore[arg-type]
        [piece(0, *A), piece(), piece(0, "a"), piece(1, *B), {"index": 1, "function": None}],
    ],
)
def test_parallel_calls_stay_apart_however_they_are_numbered(pieces: Sequence[Json]) -> None:
    one_by_one = Heard(*(calls(one) for one in pieces), chunk(finish="tool_calls"), DONE)
    at_once = Heard(calls(*pieces), chunk(finish="tool_calls"), DONE)
    assert one_by_one.calls == at_once.calls == [A, B]
    assert all(row.is_call for row in one_by_one.rows)
    assert not one_by_one.accumulator.unknown


def test_a_whole_call_is_closed_when_the_next_begins_and_another_is_not() -> None:
    wire = ChatWire()
    wire.feed(calls(piece(0, *A)))
    assert BlockClosed(0) in wire.feed(calls(piece(1, "b", "g", "{")))
    assert not any(isinstance(part, BlockClosed) for part in wire.feed(calls(piece(2, "c", "h", "{}"))))


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    heard = Heard(calls(piece(0, *A)), text("Done."), chunk(finish="tool_calls"), DONE)
    assert heard.blocks == [("tool_use", A[2]), ("text", "Done.")]


def test_data_for_a_closed_call_is_unknown() -> None:
    heard = Heard(calls(piece(0, *A)), text("Done."), calls(piece(0, arguments="more")))
    assert [json.loads(one.raw)["fields"]["text"] for one in heard.accumulator.unknown] == ["more"]


def test_calls_without_ids_get_some_that_are_the_same_for_the_same_request_only() -> None:
    pieces = [calls(piece(0, None, "f", "{}")), calls(piece(1, "", "g", "{}")), calls(piece(2, "x", "h", "{}"))]
    ids = [id for id, _, _ in Heard(*pieces).calls]
    assert len({*ids}) == 3
    assert ids[2] == "x"
    assert ids == [id for id, _, _ in Heard(*pieces).calls]
    assert {*ids} & {id for id, _, _ in Heard(*pieces, seed=b"another").calls} == {"x"}


def test_unnumbered_calls_without_ids_are_distinguished_by_their_names() -> None:
    heard = Heard(calls(piece(None, None, "f", "{}"), piece(None, None, "g", "{}")))
    assert [name for _, name, _ in heard.calls] == ["f", "g"]


def test_calls_without_ids_under_one_number_are_distinguished_by_being_complete() -> None:
    heard = Heard(calls(piece(0, None, "f", '{"n"'), piece(0, None, "f", ":1}"), piece(0, None, "f", "{}")))
    assert [input for _, _, input in heard.calls] == ['{"n":1}', "{}"]


def test_only_the_first_of_two_calls_keeps_a_repeated_id() -> None:
    ids = [id for id, _, _ in Heard(calls(piece(0, "a", "f", "{}"), piece(1, "a", "g", "{}"))).calls]
    assert ids[0] == "a"
    assert ids[1] != "a"


def test_an_empty_piece_of_a_call_begins_none() -> None:
    assert Heard(calls({}, piece(3))).parts == [MessageStarted({}, "req_1", None)]


def test_a_call_that_is_never_named_is_emitted() -> None:
    heard = Heard(calls(piece(0, "a", None, "{}")), chunk(finish="tool_calls"), DONE)
    assert heard.calls == [("a", "unnamed", "{}")]


def test_the_old_form_of_a_function_call_is_read() -> None:
    frames = [chunk({"function_call": {"name": "f", "arguments": "{"}}), chunk({"function_call": {"arguments": "}"}})]
    heard = Heard(*frames, chunk(finish="function_call"), DONE)
    assert [(name, input) for _, name, input in heard.calls] == [("f", "{}")]
    assert heard.accumulator.stop_reason == "tool_use"


@pytest.mark.parametrize("arguments", ["", '{"q": "wh'])
def test_a_call_that_was_cut_is_interrupted_and_a_whole_one_before_it_is_not(arguments: str) -> None:
    heard = Heard(calls(piece(0, *A)), calls(piece(1, "b", "g", arguments)), chunk(finish="length"), DONE)
    assert [(row.text, row.is_call) for row in heard.rows] == [(A[2], True), (arguments, False)]
    assert heard.accumulator.stop_reason == "max_tokens"


def test_of_calls_that_were_written_side_by_side_all_may_be_cut() -> None:
    heard = Heard(calls(piece(0, "a", "f", "{"), piece(1, "b", "g", "{")), chunk(finish="length"), DONE)
    assert [row.is_call for row in heard.rows] == [False, False]


def test_a_call_without_arguments_that_was_not_cut_is_whole() -> None:
    heard = Heard(calls(piece(0, "a", "f")), chunk(finish="tool_calls"), DONE)
    assert [row.is_call for row in heard.rows] == [True]


# --- usage ---------------------------------------------------------------------------------------------------


def test_figures_may_come_in_a_chunk_without_choices_after_the_end() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    heard = Heard(text("a"), chunk(finish="stop"), frame({"choices": [], "usage": usage}), DONE)
    assert heard.accumulator.usage == {"input_tokens": 10, "output_tokens": 4}


def test_figures_may_come_without_a_choices_member() -> None:
    heard = Heard(text("a"), frame({"usage": {"prompt_tokens": 10}}))
    assert heard.accumulator.usage == {"input_tokens": 10}


def test_repeated_usage_is_reported_once_and_null_usage_never() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": None}
    frames = [chunk({"content": "a"}, usage=usage) for _ in range(3)]
    told = [part for part in Heard(*frames, chunk(usage=None)).parts if isinstance(part, MessageDelta)]
    assert told == [MessageDelta(None, {"input_tokens": 10})]


# --- the end of a stream -------------------------------------------------------------------------------------


def test_an_answer_without_done_has_ended_after_its_finish_reason() -> None:
    assert Heard(text("a"), chunk(finish="stop")).accumulator.ended
    assert Heard(text("a"), chunk(finish="stop").rstrip()).accumulator.ended


def test_an_answer_that_just_stops_has_not_ended() -> None:
    heard = Heard(text("a"), text("b").rstrip(b"\n")[:-5])
    assert not heard.accumulator.ended
    assert heard.accumulator.stop_reason is None
    assert heard.blocks == [("text", "a")]
    assert heard.wire.failure is None


def test_a_last_word_without_a_reason_ends_a_text() -> None:
    assert Heard(text("a"), DONE).accumulator.stop_reason == "end_turn"
    assert Heard(calls(piece(0, *A)), DONE).accumulator.stop_reason == "tool_use"


def test_a_last_word_without_a_reason_does_not_make_a_cut_call_whole() -> None:
    heard = Heard(calls(piece(0, "a", "f", '{"q')), DONE)
    assert not heard.accumulator.ended
    assert not heard.rows[0].is_call


def test_a_last_word_alone_says_nothing() -> None:
    assert Heard(DONE).parts == []
    assert Heard(b": PROCESSING\n\n").parts == []


def test_nothing_is_read_after_the_end() -> None:
    heard = Heard(text("a"), chunk(finish="stop"), DONE, text("b"))
    assert heard.blocks == [("text", "a")]


def test_data_after_the_finish_reason_is_read() -> None:
    heard = Heard(chunk({"content": "a"}, "stop"), text("b"), calls(piece(0, *A)), DONE)
    assert heard.blocks == [("text", "ab"), ("tool_use", A[2])]


@pytest.mark.parametrize("finish", ["", None])
def test_an_empty_reason_is_none(finish: str | None) -> None:
    assert not Heard(chunk({"content": "a"}, finish)).accumulator.ended


def test_only_the_first_of_several_candidates_is_read() -> None:
    second = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    first = {"delta": {"content": "yes"}, "finish_reason": "stop"}
    heard = Heard(frame({"choices": [second, first]}), DONE)
    assert heard.blocks == [("text", "yes")]
    assert heard.accumulator.stop_reason == "end_turn"


def test_a_null_delta_says_nothing() -> None:
    assert Heard(frame({"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}), DONE).accumulator.ended


def test_an_answer_that_was_not_streamed_is_read_too() -> None:
    message = {"role": "assistant", "content": "Hello", "tool_calls": [piece(None, *A)]}
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    wire = ChatWire()
    parts = [*wire.feed_whole(json.dumps(body).encode() + b"\n"), *wire.end()]
    assert [p.type for p in parts if isinstance(p, BlockOpened)] == ["text", "tool_use"]
    assert isinstance(parts[-1], MessageEnded)
    assert ChatWire().feed_whole(b" \n") == []


# --- failures and unexpected chunks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "No."}},
        {"error": "No."},
        {"object": "error", "message": "No."},
        {"type": "error", "message": "No."},
        {"choices": [], "error": {"message": "No."}},
        {"choices": "none", "error": {"message": "No."}},
    ],
)
def test_a_failure_in_mid_stream_is_kept_and_nothing_after_it_is_read(said: Json) -> None:
    heard = Heard(text("a"), frame(said), text("b"))
    assert heard.wire.failure == said
    assert heard.blocks == [("text", "a")]
    assert not heard.accumulator.ended


def test_usage_that_comes_with_a_failure_is_reported() -> None:
    heard = Heard(chunk({}, usage={"prompt_tokens": 3}, error={"message": "No."}))
    assert heard.accumulator.usage == {"input_tokens": 3}
    assert heard.wire.failure is not None


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_is_none(error: object) -> None:
    assert Heard(chunk({"content": "a"}, "stop", error=error), DONE).accumulator.ended


def test_some_reasons_to_stop_are_failures() -> None:
    heard = Heard(text("a"), chunk(finish="insufficient_system_resource"), DONE)
    assert heard.wire.failure == {
        "code": "insufficient_system_resource",
        "message": "The provider broke off its answer (insufficient_system_resource).",
    }
    assert not heard.accumulator.ended


def test_a_failure_may_be_in_the_choice() -> None:
    error = {"code": 502, "message": "Provider returned error", "metadata": {"raw": "It is down."}}
    choice = {"index": 0, "delta": {"content": "b"}, "finish_reason": "error", "error": error}
    heard = Heard(text("a"), frame({"choices": [choice]}), DONE)
    assert heard.wire.failure == {"error": error}
    assert heard.blocks == [("text", "ab")]


@pytest.mark.parametrize("said", [b"<html>", b'{"choices":', b"[" * 100_000])
def test_data_that_is_not_json_is_a_failure(said: bytes) -> None:
    heard = Heard(text("a"), frame(said))
    assert isinstance(heard.wire.failure, BadStream)
    assert heard.blocks == [("text", "a")]


@pytest.mark.parametrize("said", [{"hello": 1}, [1], {"choices": [1]}, "word"])
def test_unknown_data_becomes_an_unknown_part(said: object) -> None:
    assert Unknown(json.dumps(said)) in Heard(frame(said)).parts


def test_a_ping_is_nothing() -> None:
    assert Heard(frame({"type": "ping"})).parts == []


def test_half_a_surrogate_pair_and_bytes_that_are_no_utf8_are_replaced() -> None:
    heard = Heard(frame(b'{"choices":[{"delta":{"content":"a\\ud83d\xff"}}]}'))
    assert heard.blocks == [("text", "a\ufffd\ufffd")]


def test_sources_and_closings_are_parts_for_their_block() -> None:
    parts = Heard(chunk({"annotations": [{"a": 1}]})).parts
    assert [type(part) for part in parts] == [MessageStarted, BlockOpened, BlockData, BlockData]


# --- sources and tools of the server ---------------------------------------------------------------------------------

URLS = ["https://a.example/", "https://b.example/"]
RESULTS = [{"url": URLS[1], "title": "B", "date": None}, {"url": URLS[0], "title": "A"}]


@pytest.mark.parametrize(
    ("members", "sources"),
    [
        ({"citations": URLS}, [(URLS[0], URLS[0]), (URLS[1], URLS[1])]),
        ({"citations": URLS, "search_results": RESULTS}, [(URLS[0], "A"), (URLS[1], "B")]),
        ({"search_results": RESULTS}, [(URLS[1], "B"), (URLS[0], "A")]),
        ({"citations": [], "search_results": RESULTS}, [(URLS[1], "B"), (URLS[0], "A")]),
        ({"citations": None, "search_results": "none"}, []),
        ({"citations": {"a": 1}, "search_results": [1, {}]}, []),
    ],
)
def test_sources_beside_the_choices_are_those_of_the_text(members: Json, sources: list[tuple[str, str]]) -> None:
    frames = [chunk({"content": words}, **members) for words in ("High ", "[1][2]")]
    heard = Heard(*frames, chunk({}, "stop", **members), DONE)
    assert heard.blocks == [("text", "High [1][2]")]
    annotations = json.loads(heard.rows[0].data or "{}").get("annotations", [])
    assert [(each["url_citation"]["url"], each["url_citation"]["title"]) for each in annotations] == sources
    assert "citations" not in (heard.accumulator.data or "")


def test_sources_of_an_answer_that_ends_in_a_call_add_no_text() -> None:
    heard = Heard(chunk({"content": "a"}, citations=URLS), calls(piece(0, "c", "look", "{}")), DONE)
    assert heard.blocks == [("text", "a"), ("tool_use", "{}")]


def test_a_tool_that_the_server_ran_is_a_call_of_its_own_with_a_result() -> None:
    begun: Json = {"index": 0, "type": "python", "arguments": '{"code": "1+1"}', "search_results": {"results": []}}
    ended = {**begun, "output": "2"}
    frames = [chunk({"reasoning": "Hm."}), *(chunk({"executed_tools": [each]}) for each in (begun, ended))]
    heard = Heard(*frames, text("It is 2."), chunk({}, "stop"), DONE)
    kinds = ["thinking", "server_tool_use", "python_tool_result", "text"]
    assert [row.type for row in heard.rows] == kinds
    _, asked, result, _ = heard.rows
    assert (asked.name, asked.text) == ("python", begun["arguments"])
    assert asked.tool_use_id == result.tool_use_id
    assert json.loads(result.data or "")["item"] == ended
    assert heard.accumulator.stop_reason == "end_turn"


def test_calls_that_arrive_complete_are_distinguished_by_their_numbers() -> None:
    tools = [{"type": "search", "arguments": f"{number}", "output": ""} for number in range(2)]
    heard = Heard(chunk({"executed_tools": tools}), text("a"), DONE)
    ids = [row.tool_use_id for row in heard.rows[:4]]
    assert ids[0] == ids[1] != ids[2] == ids[3]

import json
from typing import Any

import pytest

from turnstream.libraries.providers.anthropic.wire import AnthropicWire
from turnstream.libraries.providers.transport.wire import BadStream
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


def frame(data: bytes | str | dict[str, Any]) -> bytes:
    said = json.dumps(data).encode() if isinstance(data, dict) else data.encode() if isinstance(data, str) else data
    return b"data: " + said + b"\n\n"


def parts(*events: bytes | str | dict[str, Any]) -> list[Part]:
    wire = AnthropicWire("req_1")
    found = wire.feed(b"".join(map(frame, events)))
    assert wire.failure is None
    return found


def delta(**members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 2, "delta": members}


def start(block: str) -> str:
    return f'{{"type":"content_block_start","index":2,"content_block":{block}}}'


# --- deltas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (delta(type="text_delta", text="a"), [BlockText(2, "a")]),
        (delta(type="thinking_delta", thinking="b", estimated_tokens=3), [BlockText(2, "b")]),
        (delta(type="input_json_delta", partial_json=""), [BlockText(2, "")]),
        (delta(type="signature_delta", signature="s"), [BlockData(2, "signature", "s")]),
        (
            delta(type="compaction_delta", content="c", encrypted_content="e"),
            [BlockText(2, "c"), BlockData(2, "encrypted_content", "e")],
        ),
        (delta(type="compaction_delta", content=None), []),
        ({"type": "content_block_stop", "index": 2}, [BlockClosed(2)]),
        ({"type": "ping"}, []),
        ({"type": "message_stop"}, [MessageEnded()]),
    ],
)
def test_an_event_becomes_parts(sent: dict[str, Any], told: list[Part]) -> None:
    assert parts(sent) == told


def test_a_citation_stays_the_bytes_it_came_in() -> None:
    sent = '{"type":"content_block_delta","index":2,"delta":{"type":"citations_delta","citation":{"n": 1e2}}}'
    (part,) = parts(sent)
    assert isinstance(part, BlockData)
    assert (part.field, part.append, bytes(part.value)) == ("citations", True, b'{"n": 1e2}')


# --- blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ['{"type":"text","text":""}', '{"citations":null,"type":"text","text":""}'])
def test_a_plain_text_block_needs_no_data(block: str) -> None:
    assert parts(start(block)) == [BlockOpened(2, "text")]


@pytest.mark.parametrize(
    "block", ['{"type":"text","text":"Hi","new":1}', '{"type":"text","text":"Hi","citations":[1]}']
)
def test_a_text_block_with_more_to_it_keeps_its_object(block: str) -> None:
    assert parts(start(block)) == [BlockOpened(2, "text", block, "Hi")]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ('{"type":"thinking","thinking":"a"}', ("thinking", "a", None, None)),
        ('{"type":"tool_use","id":"t","name":"n","input":{}}', ("tool_use", "", "t", "n")),
        ('{"type":"tool_use","id":"t","name":"n"}', ("tool_use", "", "t", "n")),
        (
            '{"type":"tool_use","id":"t","name":"n","input":{"b": 1e2, "a":1}}',
            ("tool_use", '{"b": 1e2, "a":1}', "t", "n"),
        ),
        ('{"type":"mcp_tool_use","id":"t","name":"n","input":{},"server_name":"s"}', ("mcp_tool_use", "", "t", "n")),
        ('{"type":"compaction","content":null}', ("compaction", "", None, None)),
        ('{"type":"compaction","content":"c"}', ("compaction", "c", None, None)),
        (
            '{"type":"web_search_tool_result","tool_use_id":"t","content":[1]}',
            ("web_search_tool_result", "", "t", None),
        ),
        ('{"type":"brand_new", "x":[1.0]}', ("brand_new", "", None, None)),
    ],
)
def test_a_block_keeps_its_object_byte_for_byte(block: str, told: tuple[Any, ...]) -> None:
    kind, text, id, name = told
    assert parts(start(block)) == [BlockOpened(2, kind, block, text, id, name)]


# --- messages ------------------------------------------------------------------------------------------------


def test_a_message_start_has_usage_request_id_and_resume_data() -> None:
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [],
        "stop_reason": None,
    }
    sent = {"type": "message_start", "message": {**message, "usage": {"input_tokens": 3}, "container": {"id": "c"}}}
    assert parts(sent) == [MessageStarted({"input_tokens": 3}, "req_1", '{"container":{"id": "c"}}')]


def test_a_message_that_is_whole_in_its_start_gives_its_blocks_and_its_stop_reason() -> None:
    block = '{"type":"tool_use","id":"t","name":"n","input":{"a": 1}}'
    sent = f'{{"type":"message_start","message":{{"content":[{block}],"stop_reason":"tool_use"}}}}'
    assert parts(sent) == [
        MessageStarted({}, "req_1"),
        BlockOpened(-1, "tool_use", block, '{"a": 1}', "t", "n"),
        BlockClosed(-1),
        MessageDelta("tool_use", {}),
    ]


def test_a_message_delta_has_the_stop_reason_and_keeps_unknown_members() -> None:
    told = {"stop_reason": "refusal", "stop_sequence": None, "stop_details": {"category": "cyber"}}
    sent = {"type": "message_delta", "delta": told, "usage": {"output_tokens": 9}, "context_management": {"n": 1}}
    (part,) = parts(sent)
    assert isinstance(part, MessageDelta)
    assert (part.stop_reason, part.usage) == ("refusal", {"output_tokens": 9})
    assert json.loads(part.data or "") == {"context_management": {"n": 1}, "stop_details": {"category": "cyber"}}


def test_a_message_delta_may_be_empty() -> None:
    assert parts({"type": "message_delta"}) == [MessageDelta(None, {})]


# --- unknown and wrong data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "brand_new", "x": 1},
        {"no": "type"},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_start", "index": 0, "content_block": {"type": 7}},
        {"type": "content_block_delta", "index": 0},
        {"type": "message_start"},
        {"type": "message_delta", "usage": 7},
        delta(type="text_delta", text=7),
        "[1]",
        "7",
    ],
)
def test_data_of_another_shape_is_kept_as_it_came(sent: str | dict[str, Any]) -> None:
    (part,) = parts(sent)
    assert isinstance(part, Unknown)
    assert json.loads(part.raw) == (json.loads(sent) if isinstance(sent, str) else sent)


@pytest.mark.parametrize(
    "sent", [delta(type="new_delta", text="a"), delta(type="text_delta"), delta(type="signature_delta")]
)
def test_a_delta_of_an_unknown_kind_is_kept(sent: dict[str, Any]) -> None:
    (part,) = parts(sent)
    assert isinstance(part, Unknown)
    assert json.loads(part.raw) == sent["delta"]


def text_of(data: bytes) -> str:
    (part,) = parts(data)
    assert isinstance(part, BlockText)
    return part.text


@pytest.mark.parametrize(
    ("sent", "told"), [(rb"a\ud83d b", "a\ufffd b"), (b"a\xff\xfe", "a\ufffd\ufffd"), (rb"a\u0000", "a\0")]
)
def test_text_that_is_not_unicode_is_repaired_and_the_rest_kept(sent: bytes, told: str) -> None:
    assert text_of(b'{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"%b"}}' % sent) == told


def test_opaque_blocks_are_mended_too() -> None:
    (part,) = parts(b'{"type":"content_block_start","index":2,"content_block":{"type":"new","x":"\xff","y":"\\udc00"}}')
    assert isinstance(part, BlockOpened)
    assert json.loads(part.data or "") == {"type": "new", "x": "\ufffd", "y": "\ufffd"}


def test_an_error_in_mid_stream_ends_it_after_the_parts_before() -> None:
    wire = AnthropicWire()
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}
    told = wire.feed(
        frame(delta(type="text_delta", text="a")) + frame(error) + frame(delta(type="text_delta", text="b"))
    )
    assert told == [BlockText(2, "a")]
    assert wire.failure == error
    assert not wire.ended


@pytest.mark.parametrize(
    "sent",
    [
        {"error": {"type": "api_error", "message": "m"}},
        {"type": "error", "error": {}},
        {"type": "error", "error": "plain words"},
        {"type": 7, "error": "plain words"},
    ],
)
def test_an_error_of_another_shape_is_an_error_all_the_same(sent: dict[str, Any]) -> None:
    wire = AnthropicWire()
    assert wire.feed(frame(sent)) == []
    assert wire.failure == sent


@pytest.mark.parametrize("sent", ["no json", '{"type":', "[DONE", '{"type":"ping","n":NaN}', "[" * 100_000])
def test_data_that_is_not_json_ends_the_stream(sent: str) -> None:
    wire = AnthropicWire()
    wire.feed(frame(sent))
    assert isinstance(wire.failure, BadStream)
    assert sent[:20] in str(wire.failure)


def test_the_word_that_some_gateways_end_with_says_nothing() -> None:
    assert parts({"type": "ping"}, "[DONE]") == []


def test_data_after_the_end_is_ignored() -> None:
    assert parts({"type": "message_stop"}, delta(type="text_delta", text="a")) == [MessageEnded()]


def test_the_end_of_the_stream_completes_an_event_without_its_blank_line() -> None:
    wire = AnthropicWire()
    assert wire.feed(b'data: {"type":"message_stop"}') == []
    assert wire.end() == [MessageEnded()]
    assert wire.ended


def test_an_event_that_was_cut_in_the_middle_is_no_event_and_no_failure() -> None:
    wire = AnthropicWire()
    wire.feed(b'data: {"type":"message_st')
    assert wire.end() == []
    assert (wire.failure, wire.ended) == (None, False)
    assert AnthropicWire().end() == []


def test_an_answer_that_was_not_streamed_is_read() -> None:
    wire = AnthropicWire("req_1")
    said = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
    assert wire.feed_whole(b" \n") == []
    assert not wire.ended
    assert wire.feed_whole(json.dumps({**said, "usage": {"output_tokens": 1}}).encode()) == [
        MessageStarted({"output_tokens": 1}, "req_1"),
        BlockOpened(-1, "text", None, "Hi"),
        BlockClosed(-1),
        MessageDelta("end_turn", {}),
        MessageEnded(),
    ]
    assert wire.ended


def test_a_failure_that_was_not_streamed_is_one() -> None:
    wire = AnthropicWire()
    assert wire.feed_whole(b'{"type":"error","error":{"type":"overloaded_error","message":"No."}}') == []
    assert wire.failure == {"type": "error", "error": {"type": "overloaded_error", "message": "No."}}

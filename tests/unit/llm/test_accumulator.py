import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from turnstream.domain.blocks import Block
from turnstream.domain.events import BlockStart
from turnstream.llm.accumulator import _MOST_PIECES, Accumulator, Change
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

CALL = '{"type":"tool_use","id":"t","name":"look","input":{}}'


def accumulator() -> Accumulator:
    return Accumulator(round=2, attempt=3, first_index=7)


def call(key: int = 0, *fragments: str) -> list[Part]:
    opened = BlockOpened(key, "tool_use", CALL, "", "t", "look")
    return [opened, *(BlockText(key, fragment) for fragment in fragments), BlockClosed(key)]


def kinds(changes: Iterable[Change]) -> list[str]:
    return [change if isinstance(change, str) else type(change).__name__ for change in changes]


def block(changes: Sequence[Change]) -> Block:
    (found,) = [change for change in changes if isinstance(change, Block)]
    return found


# --- text ----------------------------------------------------------------------------------------------------


def test_a_block_is_numbered_and_carries_round_attempt_id_and_name() -> None:
    start, _, closed = accumulator().feed(call(5, "{}"))
    assert start == BlockStart(3, 7, 2, "tool_use", "t", "look")
    assert closed == Block(7, 2, 3, "tool_use", "{}", CALL, "t", "look")


def test_text_of_one_batch_is_one_string() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "text")])
    assert acc.feed([BlockText(0, "a"), BlockText(0, "b")]) == ["ab"]
    assert acc.feed([BlockText(0, "c")]) == ["c"]
    assert block(acc.feed([BlockClosed(0)])).text == "abc"


def test_text_around_another_change_stays_in_its_order() -> None:
    acc = accumulator()
    changes = acc.feed([BlockOpened(0, "text"), BlockText(0, "a"), Unknown("{}"), BlockText(0, "b")])
    assert kinds(changes) == ["BlockStart", "a", "Unknown", "b"]


def test_pieces_of_a_long_text_are_joined_on_its_way() -> None:
    whole = accumulator()
    whole.feed([BlockOpened(0, "text")])
    words = [f"{number} " for number in range(25_000)]
    for word in words:
        whole.feed([BlockText(0, word)])
        assert sum(len(building.pieces) for building in whole._queue) <= _MOST_PIECES
    assert block(whole.feed([BlockClosed(0)])).text == "".join(words)


def test_empty_deltas_change_nothing() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "text")])
    assert acc.feed([BlockText(0, "")]) == []


def test_text_that_came_with_the_start_is_emitted_at_once() -> None:
    assert kinds(accumulator().feed([BlockOpened(0, "text", None, "Hi")])) == ["BlockStart", "Hi"]


def test_characters_that_postgres_cannot_store_are_replaced_everywhere() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "new_kind", '{"type":"new_kind","note":"\x00"}', "\x00"), BlockText(0, "\ud800a")])
    closed = block(acc.feed([BlockClosed(0)]))
    assert closed.text == "\ufffd\ufffda"
    assert closed.data == '{"type":"new_kind","note":"\ufffd"}'


def test_names_that_postgres_cannot_hold_are_replaced_too() -> None:
    acc = accumulator()
    start, *_ = acc.feed([BlockOpened(0, "k\x00", None, "", "i\x00", "n\x00")])
    assert start == BlockStart(3, 7, 2, "k\ufffd", "i\ufffd", "n\ufffd")
    acc.feed([MessageDelta("s\x00", {})])
    assert acc.stop_reason == "s\ufffd"


# --- one open block at a time --------------------------------------------------------------------------------


def test_a_block_that_comes_whole_opens_and_closes_at_once() -> None:
    data = '{"type":"redacted_thinking","data":"x"}'
    changes = accumulator().feed([BlockOpened(0, "redacted_thinking", data), BlockClosed(0)])
    assert kinds(changes) == ["BlockStart", "Block"]
    assert block(changes).data == data


def test_a_block_that_opens_inside_another_waits_for_it() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "text"), BlockText(0, "a")])
    assert acc.feed([BlockOpened(1, "text"), BlockText(1, "x"), BlockText(0, "b")]) == ["b"]
    assert acc.feed([BlockText(1, "y"), BlockClosed(1)]) == []
    changes = acc.feed([BlockClosed(0)])
    assert kinds(changes) == ["Block", "BlockStart", "xy", "Block"]
    assert [c.index for c in changes if isinstance(c, Block)] == [7, 8]


def test_a_key_that_is_used_again_leaves_its_first_block_interrupted() -> None:
    acc = accumulator()
    changes = acc.feed([BlockOpened(0, "text"), BlockText(0, "a"), BlockOpened(0, "text"), BlockText(0, "b")])
    changes += acc.feed([BlockClosed(0)])
    assert kinds(changes) == ["BlockStart", "a", "Block", "BlockStart", "b", "Block"]
    assert [(c.text, c.interrupted) for c in changes if isinstance(c, Block)] == [("a", True), ("b", False)]


def test_a_second_message_start_interrupts_the_open_blocks_of_the_first_message() -> None:
    acc = accumulator()
    acc.feed([MessageStarted({}), BlockOpened(0, "text"), BlockText(0, "a")])
    assert block(acc.feed([MessageStarted({})])).interrupted


# --- how a stream ends ---------------------------------------------------------------------------------------


def test_interrupt_closes_open_blocks_in_order_and_keeps_complete_ones() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "text"), BlockText(0, "a"), *call(1, "{}"), BlockOpened(2, "thinking")])
    changes = acc.interrupt()
    assert [(c.type, c.interrupted) for c in changes if isinstance(c, Block)] == [
        ("text", True),
        ("tool_use", False),
        ("thinking", True),
    ]
    assert acc.interrupt() == []
    assert not acc.ended


def test_the_end_of_the_message_interrupts_a_block_that_was_never_closed() -> None:
    acc = accumulator()
    acc.feed([BlockOpened(0, "text"), BlockText(0, "a")])
    assert block(acc.feed([MessageDelta("refusal", {}), MessageEnded()])).interrupted
    assert acc.ended


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("input", ['{"a', "", "[1]"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_call_that_was_cut_by_a_limit_is_no_call_even_if_the_provider_closed_it(
    reason: str, input: str, closed: bool
) -> None:
    acc = accumulator()
    parts = call(0, input)
    changes = acc.feed(parts if closed else parts[:-1])
    changes += acc.feed([MessageDelta(reason, {})])
    assert block(changes).interrupted
    assert not block(changes).is_call


def test_a_whole_call_before_a_limit_stays_a_call() -> None:
    acc = accumulator()
    assert block(acc.feed([*call(0, "{}"), MessageDelta("max_tokens", {}), MessageEnded()])).is_call


@pytest.mark.parametrize("after", [MessageDelta("tool_use", {}), MessageEnded(), BlockOpened(1, "text")])
def test_a_call_without_input_is_a_call_once_something_other_than_a_limit_follows(after: Part) -> None:
    acc = accumulator()
    assert kinds(acc.feed(call(0, ""))) == ["BlockStart"]
    assert block(acc.feed([after])).is_call


def test_a_call_without_input_is_a_call_when_the_connection_is_lost_after_it() -> None:
    acc = accumulator()
    acc.feed([*call(0, "")])
    assert block(acc.interrupt()).is_call


def test_a_call_with_input_that_is_not_json_is_emitted_as_it_came() -> None:
    acc = accumulator()
    assert block(acc.feed([*call(0, "{'a': 1}"), MessageDelta("tool_use", {})])).text == "{'a': 1}"


def test_input_that_is_nested_too_deep_to_read_does_not_stop_us() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert block(accumulator().feed([*call(0, deep), MessageDelta("tool_use", {})])).text == deep


# --- other parts ---------------------------------------------------------------------------------------------


def closed_with(opened: BlockOpened, *news: BlockData) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(block(accumulator().feed([opened, *news, BlockClosed(0)])).data or "null")
    return found


def test_a_signature_replaces_the_one_before() -> None:
    opened = BlockOpened(0, "thinking", '{"type":"thinking","thinking":"","signature":""}')
    data = closed_with(opened, BlockData(0, "signature", "a"), BlockData(0, "signature", "b"))
    assert data == {"type": "thinking", "thinking": "", "signature": "b"}


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (None, []),
        ('{"type":"text","text":"","citations":null}', []),
        ('{"type":"text","text":"","citations":[{"n":0}]}', [{"n": 0}]),
    ],
)
def test_citations_are_added_to_those_there_are(data: str | None, known: list[Any]) -> None:
    news = [BlockData(0, "citations", {"n": 1}, append=True), BlockData(0, "citations", {"n": 2}, append=True)]
    assert closed_with(BlockOpened(0, "text", data), *news) == {
        "type": "text",
        "text": "",
        "citations": [*known, {"n": 1}, {"n": 2}],
    }


def test_news_about_a_block_without_data_make_it_some() -> None:
    assert closed_with(BlockOpened(0, "new_kind"), BlockData(0, "f", 1)) == {"type": "new_kind", "f": 1}


def test_data_of_the_provider_keeps_its_bytes_beside_the_updates() -> None:
    opened = BlockOpened(0, "thinking", '{"type":"thinking", "n": 1e2, "s": "\\u00e9"}')
    changes = accumulator().feed([opened, BlockData(0, "signature", msgspec.Raw(b'"\\u0041"')), BlockClosed(0)])
    assert block(changes).data == '{"type":"thinking","n":1e2,"s":"\\u00e9","signature":"\\u0041"}'


@pytest.mark.parametrize("part", [BlockText(9, "x"), BlockData(9, "f", msgspec.Raw(b"1")), BlockClosed(9)])
def test_news_about_a_block_that_is_not_open_are_kept_as_unknown(part: Part) -> None:
    acc = accumulator()
    changes = acc.feed([part])
    assert changes == acc.unknown
    assert type(part).__name__ in acc.unknown[0].raw


def test_unknown_things_are_kept_and_passed_on() -> None:
    acc = accumulator()
    assert acc.feed([Unknown('{"type":"new"}')]) == acc.unknown == [Unknown('{"type":"new"}')]


# --- the message ---------------------------------------------------------------------------------------------


def test_later_figures_overwrite_and_missing_ones_stay() -> None:
    assert not accumulator().started
    acc = accumulator()
    acc.feed([MessageStarted({"input_tokens": 3, "output_tokens": 1}, "req_1")])
    acc.feed([MessageDelta(None, {"output_tokens": 2, "input_tokens": None})])
    assert acc.started
    assert acc.usage == {"input_tokens": 3, "output_tokens": 2}
    assert (acc.request_id, acc.stop_reason) == ("req_1", None)
    acc.feed([MessageStarted({}), MessageDelta("end_turn", {}), MessageDelta(None, {})])
    assert (acc.request_id, acc.stop_reason) == ("req_1", "end_turn")


def test_resume_data_is_merged_and_the_latest_value_wins() -> None:
    acc = accumulator()
    acc.feed([MessageStarted({}, None, '{"container":{"id":"a"},"n":1}')])
    acc.feed([MessageDelta(None, {}, '{"container":{"id":"b"}}')])
    assert json.loads(acc.data or "") == {"container": {"id": "b"}, "n": 1}


# --- properties of every stream ------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> list[Part]:
    """Generates blocks of any kind, which may overlap or stay open, with stray parts between them."""
    parts: list[Part] = [MessageStarted({})]
    for _ in range(draw(st.integers(0, 25))):
        key = draw(st.integers(0, 3))
        kind = draw(st.sampled_from(["text", "thinking", "tool_use", "redacted_thinking"]))
        parts.append(
            draw(
                st.sampled_from(
                    [
                        BlockOpened(key, kind, None, draw(st.sampled_from(["", "start"]))),
                        BlockText(key, draw(st.sampled_from(["", "{", "}", "wörd"]))),
                        BlockText(key, "more"),
                        BlockData(key, "signature", "s"),
                        BlockClosed(key),
                        MessageDelta(draw(st.sampled_from([None, "max_tokens", "tool_use"])), {}),
                        MessageStarted({}),
                    ]
                )
            )
        )
    return [*parts, *draw(st.sampled_from([[], [MessageEnded()]]))]


@given(streams(), st.data())
@settings(max_examples=tries(150))
def test_for_any_parts_blocks_are_emitted_in_order_and_their_text_is_the_streamed_text(
    parts: list[Part], data: st.DataObject
) -> None:
    acc = accumulator()
    changes: list[Change] = []
    while parts:
        size = data.draw(st.integers(1, len(parts)))
        changes += acc.feed(parts[:size])
        parts = parts[size:]
    changes += acc.interrupt()
    opened: BlockStart | None = None
    said, indexes = "", []
    for change in changes:
        match change:
            case BlockStart():
                assert opened is None
                opened, said = change, ""
            case str():
                assert opened is not None
                assert change
                said += change
            case Block():
                assert opened is not None
                assert (change.index, change.type, change.text) == (opened.index, opened.type, said)
                indexes.append(change.index)
                opened = None
            case Unknown():
                pass
    assert opened is None
    assert indexes == list(range(7, 7 + len(indexes)))


@given(streams())
@settings(max_examples=tries(150))
def test_the_blocks_do_not_depend_on_how_the_parts_were_batched(parts: list[Part]) -> None:
    def blocks(batches: Iterable[Sequence[Part]]) -> list[Block]:
        acc = accumulator()
        changes = [change for batch in batches for change in acc.feed(batch)]
        return [change for change in [*changes, *acc.interrupt()] if isinstance(change, Block)]

    assert blocks([parts]) == blocks([part] for part in parts)


# --- ids of calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [None, "", "t", "ä" * 1001], ids=["none", "empty", "repeated", "too long for an index"])
def test_a_call_without_an_id_of_its_own_gets_one(id: str | None) -> None:
    shell = json.dumps({"type": "tool_use", "id": id, "name": None, "caller": {"type": "direct"}})
    opened = BlockOpened(1, "tool_use", shell, "{}", id, None)
    acc = accumulator()
    acc.feed(call(0, "{}"))
    given = block(acc.feed([opened, BlockClosed(1)]))
    assert re.fullmatch("call_[0-9a-f]{24}", given.tool_use_id or "")
    assert given.name == "unnamed"
    members = {"type": "tool_use", "id": given.tool_use_id, "name": "unnamed", "caller": {"type": "direct"}}
    assert json.loads(given.data or "") == members
    third = block(acc.feed([opened._replace(key=2), BlockClosed(2)]))
    assert third.tool_use_id not in {"t", given.tool_use_id}


def test_a_result_of_a_server_call_keeps_the_id_of_its_call() -> None:
    acc = accumulator()
    ids = ("server_tool_use", "web_search_tool_result")
    for key, type in enumerate(ids):
        shell = json.dumps({"type": type})
        assert block(acc.feed([BlockOpened(key, type, shell, "{}", "s"), BlockClosed(key)])).tool_use_id == "s"

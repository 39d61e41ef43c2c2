from io import StringIO
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turnstream_client.assembler import Assembler
from turnstream_client.events import Json
from turnstream_terminal.blocks import full_blocks
from turnstream_terminal.turn_parts import (
    BlockActivity,
    MarkdownSplitter,
    PartBuilder,
    Prose,
    SummaryLine,
    TurnPart,
    UserText,
    closing_lines,
    text_passages,
)

ANSWER = """# Tides

They come *twice*
a day.

- high
- low

  and between

```python
def tide():

    return "high"
```

| hour | rise |
|---|---|
| 1 | 1/12 |

Done.
"""


def block(index: int, type: str, text: str = "", round: int = 1, **more: Any) -> Json:
    return {"index": index, "round": round, "type": type, "text": text, **more}


def call(index: int, identity: str = "call_1", **more: Any) -> Json:
    return block(index, "tool_use", "{}", id=identity, name="search", **{"input": {"query": "tides"}, **more})


def result(index: int, text: str = "found", identity: str = "call_1", **more: Any) -> Json:
    return block(index, "tool_result", text, tool_use_id=identity, name="search", **{"is_error": False, **more})


def parts_of(
    *blocks: Json, end: str | None = None, activity: BlockActivity | None = None, now: float = 0.0
) -> list[TurnPart]:
    state = Assembler()
    state.blocks, state.end = list(blocks), end
    return PartBuilder().build(state, activity or BlockActivity(), now)


def line_of(
    *blocks: Json, end: str | None = None, activity: BlockActivity | None = None, now: float = 0.0
) -> SummaryLine:
    content = parts_of(*blocks, end=end, activity=activity, now=now)[-1].content
    assert isinstance(content, SummaryLine)
    return content


def shown(*blocks: Json) -> str:
    screen = StringIO()
    Console(width=200, file=screen, color_system=None).print(*full_blocks(blocks), sep="\n")
    return screen.getvalue()


# --- prose -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, len(ANSWER)), max_size=30).map(sorted))
def test_a_piece_that_is_settled_never_changes_and_no_text_is_lost(cuts: list[int]) -> None:
    pieces, settled = MarkdownSplitter(), list[str]()
    for cut in cuts:
        now = pieces.split(ANSWER[:cut])
        assert now[: len(settled)] == settled
        settled = now[:-1]
    whole = pieces.split(ANSWER)
    assert "".join("".join(whole).split()) == "".join(ANSWER.split())
    assert len(whole) == 6


def test_text_after_a_reset_is_split_again() -> None:
    pieces = MarkdownSplitter()
    pieces.split("One.\n\nTwo.\n\nThree.")
    assert pieces.split("One and a half.\n\nTwo.") == ["One and a half.\n", "Two."]


def test_only_the_last_piece_of_growing_text_is_not_settled() -> None:
    parts = parts_of(block(0, "text", "One.\n\nTwo.\n\nThr", open=True))
    assert [part.settled for part in parts] == [True, True, False]
    assert [part.number for part in parts] == [0, 1, 2]


def test_neighbouring_text_blocks_of_a_round_are_one_text_because_citations_cut_sentences() -> None:
    blocks = [block(0, "text", "The sea "), block(1, "text", "rises"), block(2, "text", ".", round=2)]
    assert [part.content for part in parts_of(*blocks)] == [Prose("The sea rises"), Prose(".")]
    assert text_passages(blocks) == ["The sea rises", "."]
    assert parts_of(*blocks)[0].last == 1


def test_a_text_that_was_cut_off_and_the_one_behind_it_are_one_text() -> None:
    cut = block(0, "text", "The sea ri", interrupted=True)
    assert text_passages([cut, block(1, "text", "ses", round=2)]) == ["The sea rises"]
    assert text_passages([cut, block(1, "thinking", "hm", round=2)]) == ["The sea ri"]
    state = Assembler()
    state.blocks, state.rounds = [cut], {1: {"round": 1, "stop_reason": "interrupted"}}
    assert not PartBuilder().build(state, BlockActivity(), 0)[0].settled


def test_text_that_another_block_could_still_join_is_not_settled() -> None:
    assert not parts_of(block(0, "text", "The sea"))[0].settled
    assert parts_of(block(0, "text", "The sea"), block(1, "thinking", open=True))[0].settled
    assert parts_of(block(0, "text", "The sea"), end="turn_complete")[0].settled


# --- lines -----------------------------------------------------------------------------------------------------------


def test_open_thinking_shows_its_last_words_and_closed_thinking_its_first_words_and_time() -> None:
    activity = BlockActivity(began={0: 10.0}, ended={0: 13.4})
    words = "first " + "words " * 30 + "last"
    assert line_of(block(0, "thinking", words, open=True)).details.endswith("words last")
    done = line_of(block(0, "thinking", words), activity=activity)
    assert done.name == "thought for 3.4 s"
    assert done.details.startswith("first words")
    assert line_of(block(0, "thinking", words)).name == "thought"


def test_a_call_and_its_result_are_one_line() -> None:
    activity = BlockActivity(began={1: 5.5}, ended={0: 5.0})
    assert [part.content for part in parts_of(call(0), result(1), activity=activity)] == [
        SummaryLine("ok", "search", 'query="tides"', "0.5 s")
    ]


def test_a_running_call_shows_its_progress_and_how_long_it_runs() -> None:
    activity = BlockActivity(ended={0: 5.0}, progress={"call_1": "page 2"})
    part = parts_of(call(0), activity=activity, now=7.0)[0]
    assert part.content == SummaryLine("running", "search", 'query="tides"', "page 2 · 2.0 s")
    assert not part.settled


def test_parallel_calls_are_lines_side_by_side_each_with_its_own_result() -> None:
    statuses = [part.content.status for part in parts_of(call(0), call(1, "call_2"), result(2, identity="call_2"))]  # type: ignore[union-attr]
    assert statuses == ["running", "ok"]


def test_a_call_id_of_another_round_is_another_call() -> None:
    parts = parts_of(call(0), result(1), call(2, round=2))
    assert [part.content.status for part in parts] == ["ok", "running"]  # type: ignore[union-attr]


def test_a_failed_call_shows_the_first_line_of_its_result() -> None:
    line = line_of(call(0), result(1, "no such index\nat line 3", is_error=True))
    assert (line.status, line.note) == ("failed", "no such index")


def test_returned_files_are_named_after_the_text() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    assert line_of(call(0), result(1, content=[picture])).note == "[image/png]"
    assert shown(result(1, content=[picture])).split()[-2:] == ["found", "[image/png]"]
    assert shown(result(1, "", content=[picture])).split()[-1] == "[image/png]"
    assert "(nothing)" in shown(result(1, ""))


def test_a_call_without_a_result_is_stopped_once_the_turn_has_ended() -> None:
    assert line_of(call(0), end="turn_cancelled").status == "stopped"
    assert line_of(call(0, interrupted=True)).status == "stopped"


def test_an_open_call_shows_its_length() -> None:
    assert line_of(block(0, "tool_use", '{"query": "ti', name="search", open=True)) == SummaryLine(
        "writing", "search", note="13 characters"
    )


def test_other_blocks_are_named_and_a_result_without_a_call_is_shown() -> None:
    assert line_of(block(0, "redacted_thinking")).details == "not shown"
    assert line_of(block(0, "compaction", "in short")) == SummaryLine("other", "compaction", "in short")
    assert line_of(result(0)).name == "tool result"


def shortened(last_turn: str = "turn-2") -> Json:
    places = {"first": {"turn": "turn-1", "round": 2}, "last": {"turn": last_turn, "round": 3}}
    data = {"type": "shortened", **places, "head": 500, "results": 2, "left_out": 25_000}
    return block(0, "shortened", "From here on 2 earlier tool results are sent shortened.", data=data)


def verdict(text: str, *, taken: bool) -> Json:
    return block(0, "verdict", text, data={"type": "verdict", "taken": taken})


def test_a_shortened_block_is_one_line_and_in_full_names_the_rounds() -> None:
    assert line_of(shortened()) == SummaryLine(
        "other", "2 older tool results sent shortened", "from 26,000 characters to 1,000"
    )
    apart, together = (shown(shortened(last)) for last in ("turn-2", "turn-1"))
    assert "Round 2 of turn turn-1 to round 3 of turn turn-2: the first 500 characters of each" in apart
    assert "Round 2 to round 3 of turn turn-1: the first 500 characters of each" in together


def test_files_that_are_not_sent_any_more_are_counted() -> None:
    data = {"type": "shortened", "head": 500, "results": 2, "left_out": 25_000, "files": 1}
    line = line_of(block(0, "shortened", "From here on", data=data))
    assert (line.name, line.details) == ("2 older tool results sent shortened", "without 25,000 characters and 1 file")


def test_a_verdict_shows_the_problem_of_a_rejected_output() -> None:
    assert line_of(verdict("The output was accepted.", taken=True)) == SummaryLine("ok", "output accepted")
    wrong = line_of(verdict("The output is not right. `year` is\nnot there.", taken=False))
    assert wrong == SummaryLine("failed", "output not accepted", note="`year` is not there.")


def test_a_summary_is_shown_while_it_is_written_and_afterwards() -> None:
    assert line_of(block(0, "summary", "In sh", open=True)) == SummaryLine(
        "writing", "summarising the turns before", note="5 characters"
    )
    assert line_of(block(0, "summary", "In short.")) == SummaryLine(
        "other", "the turns before were summarised:", "In short."
    )


def test_a_server_tool_and_its_result_are_one_line_too() -> None:
    asked = block(0, "server_tool_use", "{}", id="srv_1", name="web_search", input={"query": "tides"})
    found = block(1, "web_search_tool_result", id="srv_1")
    assert [part.content for part in parts_of(asked, found)] == [SummaryLine("ok", "web_search", 'query="tides"')]


def test_a_call_that_waits_for_a_person_is_marked_and_not_settled() -> None:
    state = Assembler()
    state.blocks, state.actions = [call(0)], [{"tool_use_id": "call_1"}]
    (part,) = PartBuilder().build(state, BlockActivity(), 0.0)
    assert part.content == SummaryLine("waiting", "search", 'query="tides"', "waits for a person")
    assert not part.settled


def test_a_denied_call_is_no_failure() -> None:
    denied = result(1, "The user did not allow it.", is_error=True, notes={"approval": {"decision": "denied"}})
    assert line_of(call(0), denied) == SummaryLine("stopped", "search", 'query="tides"', "not allowed")


def test_a_call_shows_edited_arguments_and_remarks() -> None:
    notes = {"approval": {"decision": "approve", "input": '{"query": "moon"}'}, "retries": 1}
    assert line_of(call(0), result(1, notes=notes)) == SummaryLine(
        "ok", "search", 'query="moon"', "edited · tried again"
    )
    assert line_of(call(0), result(1, "no", is_error=True, notes={"retries": 1})).note == "no · tried again"


def test_a_message_sent_meanwhile_is_a_part_between_the_texts() -> None:
    blocks = [block(0, "text", "One."), block(1, "user_text", "Stop\x1b"), block(2, "text", "Two.", round=2)]
    assert [part.content for part in parts_of(*blocks)] == [Prose("One."), UserText("Stop\ufffd"), Prose("Two.")]
    assert [part.settled for part in parts_of(block(0, "user_text", "St", open=True))] == [False]
    assert text_passages(blocks) == ["One.", "Two."]


def test_a_reset_discards_the_times_of_removed_blocks() -> None:
    activity = BlockActivity(began={0: 1.0, 1: 2.0}, ended={0: 2.0, 1: 3.0})
    activity.discard_from(1)
    assert (activity.began, activity.ended) == ({0: 1.0}, {0: 2.0})


# --- the end ---------------------------------------------------------------------------------------------------------


def ended(event: str, stop_reason: str, error: Json | None = None) -> Assembler:
    state = Assembler()
    state.start = {"model": "demo"}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 2000, "output_tokens": 5}
    state.apply(event, {"stop_reason": stop_reason, "usage": usage, "error": error})
    return state


def test_a_normal_end_shows_only_the_cost() -> None:
    assert closing_lines(ended("turn_complete", "end_turn"), None) == []
    (cost,) = closing_lines(ended("turn_complete", "end_turn"), 2.5)
    assert cost.name == "demo · 2,010 tokens in, 5 out · 2.5 s"


def test_degraded_tools_come_before_the_cost() -> None:
    state = ended("turn_complete", "end_turn")
    state.degraded = [{"what": "cut", "index": 1, "tool": "search"}]
    assert [line.name for line in closing_lines(state, None)] == ["degraded: search cut"]
    assert len(closing_lines(state, 1.0)) == 2


def test_an_unusual_end_is_named() -> None:
    assert [line.name for line in closing_lines(ended("turn_complete", "max_tokens"), None)] == [
        "cut off at max_tokens"
    ]
    assert [line.name for line in closing_lines(ended("turn_cancelled", "cancelled"), None)] == ["stopped"]
    assert [line.name for line in closing_lines(ended("turn_cancelled", "deleted"), None)] == ["deleted"]
    error = {"type": "overloaded_error", "message": "Overloaded", "request_id": "req_1"}
    (line,) = closing_lines(ended("turn_error", "error", error), None)
    assert line.name == "the turn failed: overloaded_error: Overloaded (request req_1)"

from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.terminal.assembler import Assembler, Json
from app.terminal.blocks import unfolded
from app.terminal.text import clean, sentence, short_input, span
from app.terminal.turn_parts import Fold, Part, Parts, Pieces, Prose, Said, Watch, last_words, passages

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


def parts_of(*blocks: Json, end: str | None = None, watch: Watch | None = None, now: float = 0.0) -> list[Part]:
    state = Assembler()
    state.blocks, state.end = list(blocks), end
    return Parts().of(state, watch or Watch(), now)


def fold_of(*blocks: Json, end: str | None = None, watch: Watch | None = None, now: float = 0.0) -> Fold:
    content = parts_of(*blocks, end=end, watch=watch, now=now)[-1].content
    assert isinstance(content, Fold)
    return content


def shown(*blocks: Json) -> str:
    screen = StringIO()
    Console(width=200, file=screen, color_system=None).print(*unfolded(blocks), sep="\n")
    return screen.getvalue()


# --- prose -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, len(ANSWER)), max_size=30).map(sorted))
def test_a_piece_that_is_settled_never_changes_and_no_text_is_lost(cuts: list[int]) -> None:
    pieces, settled = Pieces(), list[str]()
    for cut in cuts:
        now = pieces.of(ANSWER[:cut])
        assert now[: len(settled)] == settled
        settled = now[:-1]
    whole = pieces.of(ANSWER)
    assert "".join("".join(whole).split()) == "".join(ANSWER.split())
    assert len(whole) == 6


def test_text_that_was_taken_back_is_cut_anew() -> None:
    pieces = Pieces()
    pieces.of("One.\n\nTwo.\n\nThree.")
    assert pieces.of("One and a half.\n\nTwo.") == ["One and a half.\n", "Two."]


def test_only_the_last_piece_of_text_that_grows_is_open() -> None:
    parts = parts_of(block(0, "text", "One.\n\nTwo.\n\nThr", open=True))
    assert [part.settled for part in parts] == [True, True, False]
    assert [part.number for part in parts] == [0, 1, 2]


def test_neighbouring_text_blocks_of_a_round_are_one_text_because_citations_cut_sentences() -> None:
    blocks = [block(0, "text", "The sea "), block(1, "text", "rises"), block(2, "text", ".", round=2)]
    assert [part.content for part in parts_of(*blocks)] == [Prose("The sea rises"), Prose(".")]
    assert passages(blocks) == ["The sea rises", "."]
    assert parts_of(*blocks)[0].last == 1


def test_text_that_another_block_could_still_join_is_not_settled() -> None:
    assert not parts_of(block(0, "text", "The sea"))[0].settled
    assert parts_of(block(0, "text", "The sea"), block(1, "thinking", open=True))[0].settled
    assert parts_of(block(0, "text", "The sea"), end="turn_complete")[0].settled


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert clean("a\x1b[2Jb\r\nc\td\x07\x9b") == "a\ufffd[2Jb\nc\td\ufffd\ufffd"


# --- folds -----------------------------------------------------------------------------------------------------------


def test_thinking_shows_its_last_words_while_it_goes_on_and_its_first_ones_and_its_time_afterwards() -> None:
    watch = Watch(began={0: 10.0}, ended={0: 13.4})
    words = "first " + "words " * 30 + "last"
    assert fold_of(block(0, "thinking", words, open=True)).details.endswith("words last")
    done = fold_of(block(0, "thinking", words), watch=watch)
    assert done.name == "thought for 3.4 s"
    assert done.details.startswith("first words")
    assert fold_of(block(0, "thinking", words)).name == "thought"


def test_a_call_and_its_result_are_one_line() -> None:
    watch = Watch(began={1: 5.5}, ended={0: 5.0})
    assert [part.content for part in parts_of(call(0), result(1), watch=watch)] == [
        Fold("ok", "search", 'query="tides"', "0.5 s")
    ]


def test_a_running_call_shows_its_progress_and_how_long_it_runs() -> None:
    watch = Watch(ended={0: 5.0}, progress={"call_1": "page 2"})
    part = parts_of(call(0), watch=watch, now=7.0)[0]
    assert part.content == Fold("running", "search", 'query="tides"', "page 2 · 2.0 s")
    assert not part.settled


def test_parallel_calls_are_lines_side_by_side_each_with_its_own_result() -> None:
    looks = [part.content.look for part in parts_of(call(0), call(1, "call_2"), result(2, identity="call_2"))]  # type: ignore[union-attr]
    assert looks == ["running", "ok"]


def test_a_call_id_of_another_round_is_another_call() -> None:
    parts = parts_of(call(0), result(1), call(2, round=2))
    assert [part.content.look for part in parts] == ["ok", "running"]  # type: ignore[union-attr]


def test_a_failed_call_says_why_in_the_first_line_of_its_result() -> None:
    fold = fold_of(call(0), result(1, "no such index\nat line 3", is_error=True))
    assert (fold.look, fold.note) == ("failed", "no such index")


def test_files_that_a_call_returned_are_named_and_unfolded_after_its_words() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    assert fold_of(call(0), result(1, content=[picture])).note == "[image/png]"
    assert shown(result(1, content=[picture])).split()[-2:] == ["found", "[image/png]"]
    assert shown(result(1, "", content=[picture])).split()[-1] == "[image/png]"
    assert "(nothing)" in shown(result(1, ""))


def test_a_call_without_a_result_is_told_apart_once_the_turn_has_ended() -> None:
    assert fold_of(call(0), end="turn_cancelled").look == "stopped"
    assert fold_of(call(0, interrupted=True)).look == "stopped"


def test_a_call_that_is_still_being_written_shows_how_far_it_is() -> None:
    assert fold_of(block(0, "tool_use", '{"query": "ti', name="search", open=True)) == Fold(
        "writing", "search", note="13 characters"
    )


def test_other_blocks_are_named_and_a_result_without_a_call_is_shown() -> None:
    assert fold_of(block(0, "redacted_thinking")).details == "not shown"
    assert fold_of(block(0, "compaction", "in short")) == Fold("other", "compaction", "in short")
    assert fold_of(result(0)).name == "tool result"


def shortened(last_turn: str = "turn-2") -> Json:
    places = {"first": {"turn": "turn-1", "round": 2}, "last": {"turn": last_turn, "round": 3}}
    data = {"type": "shortened", **places, "head": 500, "results": 2, "left_out": 25_000}
    return block(0, "shortened", "From here on 2 earlier tool results are sent shortened.", data=data)


def verdict(text: str, *, taken: bool) -> Json:
    return block(0, "verdict", text, data={"type": "verdict", "taken": taken})


def test_what_was_shortened_is_one_line_and_unfolded_says_where() -> None:
    assert fold_of(shortened()) == Fold(
        "other", "2 older tool results sent shortened", "from 26,000 characters to 1,000"
    )
    apart, together = (shown(shortened(last)) for last in ("turn-2", "turn-1"))
    assert "Round 2 of turn turn-1 to round 3 of turn turn-2: the first 500 characters of each" in apart
    assert "Round 2 to round 3 of turn turn-1: the first 500 characters of each" in together


def test_files_that_are_not_sent_any_more_are_counted() -> None:
    data = {"type": "shortened", "head": 500, "results": 2, "left_out": 25_000, "files": 1}
    fold = fold_of(block(0, "shortened", "From here on", data=data))
    assert (fold.name, fold.details) == ("2 older tool results sent shortened", "without 25,000 characters and 1 file")


def test_an_output_was_accepted_or_it_is_said_what_is_wrong_with_it() -> None:
    assert fold_of(verdict("The output was taken.", taken=True)) == Fold("ok", "output accepted")
    wrong = fold_of(verdict("The output is not right. `year` is\nnot there.", taken=False))
    assert wrong == Fold("failed", "output not accepted", note="`year` is not there.")


def test_a_summary_of_the_turns_before_is_told_while_it_is_made_and_when_it_is_there() -> None:
    assert fold_of(block(0, "summary", "In sh", open=True)) == Fold(
        "writing", "summarising the turns before", note="5 characters"
    )
    assert fold_of(block(0, "summary", "In short.")) == Fold("other", "the turns before were summarised:", "In short.")


def test_a_server_tool_and_its_result_are_one_line_too() -> None:
    asked = block(0, "server_tool_use", "{}", id="srv_1", name="web_search", input={"query": "tides"})
    found = block(1, "web_search_tool_result", id="srv_1")
    assert [part.content for part in parts_of(asked, found)] == [Fold("ok", "web_search", 'query="tides"')]


def test_a_call_that_waits_for_a_person_says_so_and_is_not_settled() -> None:
    state = Assembler()
    state.blocks, state.actions = [call(0)], [{"tool_use_id": "call_1"}]
    (part,) = Parts().of(state, Watch(), 0.0)
    assert part.content == Fold("waiting", "search", 'query="tides"', "waits for a person")
    assert not part.settled


def test_a_call_that_nobody_allowed_is_no_failure() -> None:
    denied = result(1, "The user did not allow it.", is_error=True, notes={"approval": {"decision": "denied"}})
    assert fold_of(call(0), denied) == Fold("stopped", "search", 'query="tides"', "not allowed")


def test_a_call_shows_the_arguments_it_was_run_with_and_what_it_needed() -> None:
    notes = {"approval": {"decision": "approve", "input": '{"query": "moon"}'}, "retries": 1}
    assert fold_of(call(0), result(1, notes=notes)) == Fold("ok", "search", 'query="moon"', "edited · tried again")
    assert fold_of(call(0), result(1, "no", is_error=True, notes={"retries": 1})).note == "no · tried again"


def test_what_the_user_said_meanwhile_stands_in_its_place() -> None:
    blocks = [block(0, "text", "One."), block(1, "user_text", "Stop\x1b"), block(2, "text", "Two.", round=2)]
    assert [part.content for part in parts_of(*blocks)] == [Prose("One."), Said("Stop\ufffd"), Prose("Two.")]
    assert [part.settled for part in parts_of(block(0, "user_text", "St", open=True))] == [False]
    assert passages(blocks) == ["One.", "Two."]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"query": "rule of twelfths", "limit": 3}, 'query="rule of twelfths", limit=3'),
        ({"text": "x" * 100}, 'text="' + "x" * 57 + '…"'),
        ({"lines": ["a\nb"]}, 'lines=["a\\nb"]'),
        ({}, ""),
        (None, ""),
        ("not JSON", '"not JSON"'),
    ],
)
def test_an_input_is_noted_down_shortly(value: Any, shown: str) -> None:
    assert short_input(value) == shown


@pytest.mark.parametrize(("seconds", "words"), [(0.25, "0.2 s"), (9.9, "9.9 s"), (12.3, "12 s"), (125.0, "2 min 5 s")])
def test_times_are_told_as_a_person_tells_them(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_reset_forgets_what_was_seen_of_the_blocks_that_are_gone() -> None:
    watch = Watch(began={0: 1.0, 1: 2.0}, ended={0: 2.0, 1: 3.0})
    watch.forget(1)
    assert (watch.began, watch.ended) == ({0: 1.0}, {0: 2.0})


# --- the end ---------------------------------------------------------------------------------------------------------


def ended(event: str, stop_reason: str, error: Json | None = None) -> Assembler:
    state = Assembler()
    state.start = {"model": "demo"}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 2000, "output_tokens": 5}
    state.apply(event, {"stop_reason": stop_reason, "usage": usage, "error": error})
    return state


def test_a_turn_that_ended_as_usual_needs_no_word_but_what_it_took() -> None:
    assert last_words(ended("turn_complete", "end_turn"), None) == []
    (cost,) = last_words(ended("turn_complete", "end_turn"), 2.5)
    assert cost.name == "demo · 2,010 tokens in, 5 out · 2.5 s"


def test_a_turn_that_needed_a_policy_says_so_in_one_line_before_all_else() -> None:
    state = ended("turn_complete", "end_turn")
    state.degraded = [{"what": "cut", "index": 1, "tool": "search"}]
    assert [fold.name for fold in last_words(state, None)] == ["degraded: search cut"]
    assert len(last_words(state, 1.0)) == 2


def test_a_turn_that_ended_otherwise_says_so() -> None:
    assert [fold.name for fold in last_words(ended("turn_complete", "max_tokens"), None)] == ["cut off at max_tokens"]
    assert [fold.name for fold in last_words(ended("turn_cancelled", "cancelled"), None)] == ["stopped"]
    error = {"type": "overloaded_error", "message": "Overloaded", "request_id": "req_1"}
    (fold,) = last_words(ended("turn_error", "error", error), None)
    assert fold.name == "the turn failed: overloaded_error: Overloaded (request req_1)"


@pytest.mark.parametrize("words", ["it is too late", "It is too late."])
def test_a_sentence_begins_and_ends_like_one(words: str) -> None:
    assert sentence(words) == "It is too late."

"""The decision to compact a path that is too long for its model, and the path that remains afterwards."""

import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.turns import call, result, sealed, text, turn_of
from turnstream.domain.blocks import Block
from turnstream.domain.compaction import compaction_needed, earlier_cut, estimate_size, size_of_reply
from turnstream.domain.history import COMPACTED, summary_on, turns_after_summary
from turnstream.domain.kinds import SUMMARY
from turnstream.domain.rounds import Round
from turnstream.domain.steps import CallModel, Compact, next_step
from turnstream.domain.turns import EarlierResults, Limits, Turn, TurnRequest

LIMITS = Limits(context_window=1000)


def user(number: int, words: str = "Well. ") -> Turn:
    turn = turn_of(text(content=words, round=0), status="complete")
    return replace(turn, id=UUID(int=number), role="user", request=None)


def answer(number: int, size: int = 10, *rounds: Round, blocks: Sequence[Block] = ()) -> Turn:
    """Returns an answer whose text has about `size` tokens."""
    words = text(content="x" * (size * 4 - 4))
    turn = turn_of(*(blocks or [words]), rounds=rounds or [sealed(1, "end_turn")], limits=LIMITS, status="complete")
    return replace(turn, id=UUID(int=number))


def running(*blocks: Block, rounds: Sequence[Round] = (), limits: Limits = LIMITS) -> Turn:
    return replace(turn_of(*blocks, rounds=rounds, limits=limits), id=UUID(int=99))


def chat(sizes: Sequence[int], last: Turn) -> list[Turn]:
    path: list[Turn] = []
    for place, size in enumerate(sizes):
        path += [user(10 + 2 * place), answer(11 + 2 * place, size)]
    return [*path, user(90), last]


def told(through: int, words: str = "In short.", number: int = 1) -> tuple[Block, Round]:
    data = json.dumps({"type": SUMMARY, "through": str(UUID(int=through))})
    return Block(0, number, 1, SUMMARY, words, data), sealed(number, COMPACTED)


def with_usage(round: Round, tokens: int) -> Round:
    return replace(round, usage={"input_tokens": tokens, "output_tokens": None})


def test_a_path_that_fits_is_left_alone() -> None:
    path = chat([100, 100], running())
    assert compaction_needed(path) is None
    assert next_step(path[-1], path[:-1]) == CallModel(1)


def test_of_one_that_does_not_the_newest_turns_stay() -> None:
    path = chat([400, 400, 200], running())
    through = compaction_needed(path)
    assert through == UUID(int=13)
    assert next_step(path[-1], path[:-1]) == Compact(1, UUID(int=13))


def test_without_a_window_nobody_knows_that_it_is_too_long_until_the_provider_says_so() -> None:
    path = chat([4000, 400], running(limits=Limits()))
    assert compaction_needed(path) is None
    assert compaction_needed(path, forced=True) == UUID(int=11)


def test_a_window_that_is_said_to_be_larger_than_it_is_does_not_end_the_turn() -> None:
    path = chat([4000, 400], running(limits=Limits(context_window=1_000_000)))
    assert compaction_needed(path) is None
    assert compaction_needed(path, forced=True) == UUID(int=11)


def test_a_first_turn_has_nothing_to_be_summarised() -> None:
    assert compaction_needed([user(1, "x" * 9000), running()]) is None
    assert compaction_needed([running()], forced=True) is None
    assert compaction_needed([user(1), user(2, "x" * 9000), user(3), running()]) is None


def test_a_paused_provider_is_not_interrupted_by_a_summary() -> None:
    path = chat([900], running(text(), rounds=[sealed(1, "pause_turn")]))
    assert compaction_needed(path) is not None
    assert next_step(path[-1], path[:-1]) == CallModel(2)


def test_figures_of_the_last_call_go_before_an_estimate() -> None:
    long = with_usage(sealed(1, "end_turn"), 5000)
    assert estimate_size([user(1), answer(2, 10, long), user(3, "x" * 40), running()]).tokens == 5000 + 11
    asked = running(replace(text(), type="tool_use"), result(1), rounds=[with_usage(sealed(1), 300)])
    assert estimate_size([user(1), asked]).tokens == 300 + 2


def test_an_image_counts_as_one_and_thoughts_as_their_words() -> None:
    picture = Block(0, 0, 0, "image", "", '{"source":{}}')
    document = Block(0, 0, 0, "document", "", "x" * 400)
    thought = Block(0, 0, 0, "thinking", "x" * 40, "x" * 4000)
    sizes = [
        estimate_size([replace(user(1), blocks=(block,)), running()]).tokens for block in (picture, document, thought)
    ]
    assert sizes == [1600, 101, 11]


def test_a_summary_is_followed_by_the_turns_after_its_last_one() -> None:
    block, round = told(13)
    path = chat([400, 400, 200], running(block, rounds=[round]))
    summary = summary_on(path)
    assert summary is not None
    assert (summary.place, summary.round, summary.through, summary.text) == (7, 1, UUID(int=13), "In short.")
    assert [turn.id.int for turn in turns_after_summary(path)] == [14, 15, 90, 99]
    assert estimate_size(path).tokens == 3 + 2 + 200 + 2
    assert compaction_needed(path) is None
    assert next_step(path[-1], path[:-1]) == CallModel(2)


def test_a_later_turn_sees_the_summary_and_an_estimate_again() -> None:
    block, round = told(11)
    made = answer(13, 10, round, replace(with_usage(sealed(2, "end_turn"), 70)), blocks=[block, text(1, round=2)])
    path = [user(10), answer(11, 900), user(12), made, user(14), running()]
    assert [turn.id.int for turn in turns_after_summary(path)] == [12, 13, 14, 99]
    assert estimate_size(path).tokens == 70 + 2


@pytest.mark.parametrize(
    "block",
    [Block(0, 1, 1, SUMMARY, "Half a", None), Block(0, 2, 1, SUMMARY, "x", '{"through":"x"}'), text()],
)
def test_an_incomplete_summary_is_ignored(block: Block) -> None:
    path = chat([10], running(block, rounds=[sealed(1, COMPACTED), sealed(2, "cancelled")]))
    assert summary_on(path) is None
    assert turns_after_summary(path) == path


def test_a_summary_of_turns_that_are_not_on_the_path_keeps_all() -> None:
    block, round = told(77)
    path = chat([10], running(block, rounds=[round]))
    assert turns_after_summary(path) == path


def test_an_earlier_cut_halves_the_part_to_summarise() -> None:
    path = chat([10, 10, 10, 10], running())
    assert earlier_cut(path, UUID(int=17)) == UUID(int=13)
    assert earlier_cut(path, UUID(int=13)) == UUID(int=11)
    assert earlier_cut(path, UUID(int=11)) is None


def test_a_cut_never_ends_behind_a_user() -> None:
    path = [user(1), answer(2, 500), user(3, "x" * 2000), user(4), running()]
    through = compaction_needed(path)
    assert through == UUID(int=2)


def test_a_round_that_tells_no_figures_leaves_an_estimate() -> None:
    path = [user(1, "x" * 40), answer(2, 10, sealed(1, "end_turn")), user(3), running(rounds=[Round(1, 1)])]
    assert estimate_size(path).tokens == 11 + 10 + 2


def test_the_size_of_a_reply_counts_the_blocks_of_the_model_in_its_round() -> None:
    blocks = [text(0, content="x" * 400), text(1, 2, "y" * 40), text(2, 2, "")]
    assert [size_of_reply(blocks, number) for number in (1, 2, 3)] == [101, 11, 0]


# --- results of earlier turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "tokens"), [("whole", "none", 1013), ("none", "none", 1013), ("none", "whole", 2015)]
)
def test_omitted_parts_of_earlier_turns_do_not_count(then: EarlierResults, now: EarlierResults, tokens: int) -> None:
    big = replace(result(), text="x" * 4000)
    before = answer(1, 10, sealed(1), blocks=[call(), big])
    after = answer(3, 10, with_usage(sealed(1, "end_turn"), 1000 if then == "none" else 2002))
    after = replace(after, request=replace(request_of(after), limits=replace(LIMITS, earlier_results=then)))
    path = [user(0), before, user(2), after, user(4), running(limits=replace(LIMITS, earlier_results=now))]
    assert abs(estimate_size(path).tokens - tokens) < 12
    unknown = [user(0), before, user(2), running(limits=replace(LIMITS, earlier_results=now))]
    assert (estimate_size(unknown).tokens > 1000) == (now == "whole")


def request_of(turn: Turn) -> TurnRequest:
    assert turn.request is not None
    return turn.request

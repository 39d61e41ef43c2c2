"""Decides when older tool results are sent in shortened form, and which of the results."""

import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.turns import call, result, sealed, text, turn_of
from turnstream.domain.blocks import Block
from turnstream.domain.compaction import SizeEstimate, compaction_needed, estimate_size, may_need_compaction
from turnstream.domain.history import COMPACTED, shortening_of, shortenings_on
from turnstream.domain.kinds import SHORTENED, SUMMARY
from turnstream.domain.log import marks_of
from turnstream.domain.results import layout_of
from turnstream.domain.rounds import Round
from turnstream.domain.steps import CallModel, Compact, Shorten, next_step
from turnstream.domain.turns import Limits, ToolSpec, Turn

LIMITS = Limits(context_window=10_000)


def user(number: int, words: str = "Well. ") -> Turn:
    turn = turn_of(text(content=words, round=0), status="complete")
    return replace(turn, id=UUID(int=number), role="user", request=None)


def rounds_of(*sizes: Sequence[int]) -> list[Block]:
    """Returns rounds of tool calls. Each list has the sizes, in tokens, of the results in one round."""
    blocks: list[Block] = []
    for round, lengths in enumerate(sizes, 1):
        calls = [call(0, round, f"{round}-{n}") for n, _ in enumerate(lengths)]
        results = [replace(result(0, round, f"{round}-{n}"), text="x" * size * 4) for n, size in enumerate(lengths)]
        blocks += [*calls, *results]
    return [replace(block, index=index) for index, block in enumerate(blocks)]


def answer(number: int, *sizes: Sequence[int], **fields: object) -> Turn:
    rounds = [sealed(round) for round in range(1, len(sizes) + 1)]
    turn = turn_of(*rounds_of(*sizes), rounds=rounds, limits=LIMITS)
    return replace(turn, id=UUID(int=number), **fields)  # type: ignore[arg-type]


def run(path: Sequence[Turn], tokens: int | None = None) -> list[Turn]:
    """Returns the path after the shortening that `next_step` decides on."""
    step = next_step(path[-1], path[:-1], tokens)
    assert isinstance(step, Shorten)
    return [*path[:-1], replace(path[-1], blocks=(*path[-1].blocks, step.block))]


def shortened(path: Sequence[Turn], *, tokens: int | None = None, forced: bool = False) -> list[Turn]:
    """Returns the shortened path. Unlike `run`, it does not depend on the limit of rounds."""
    block = compaction_needed(path, tokens=tokens, forced=forced)
    assert isinstance(block, Block)
    return [*path[:-1], replace(path[-1], blocks=(*path[-1].blocks, block))]


def test_results_before_the_newest_that_fit_into_a_quarter_of_the_window_are_shortened() -> None:
    path = [user(1), answer(2, [2000], [2000]), user(3), answer(4, [2000], [1000], [1400])]
    after = run(path)
    (made,) = shortenings_on(after)
    assert (made.first, made.last, made.made) == ((1, 1), (3, 1), (3, 3))
    assert (made.results, made.left_out) == (3, 3 * (8000 - 500))
    assert [made.shortens((3, 1), after[3].blocks[1]), made.shortens((3, 2), after[3].blocks[3])] == [True, False]
    assert next_step(after[-1], after[:-1]) == CallModel(4)


def test_the_block_describes_its_effect_and_is_shown_behind_its_round() -> None:
    path = run([user(1), answer(2, [4000], [2500], [2400])])
    block = path[-1].blocks[-1]
    assert (block.type, block.index, block.round) == (SHORTENED, 6, 3)
    assert block.text == "From here on 2 earlier tool results are sent shortened, without 25,000 of their characters."
    ends = [getattr(mark, "block", mark) for mark in marks_of(path[-1])]
    assert ends[-1] is block
    assert json.loads(block.data or "")["last"] == {"turn": str(UUID(int=2)), "round": 2}


def test_before_a_turns_first_round_it_is_round_0() -> None:
    path = run([user(1), answer(2, [8000], [2000]), user(3), answer(4)])
    assert path[-1].blocks[-1].round == 0
    shown = [getattr(mark, "block", None) for mark in marks_of(path[-1])]
    assert path[-1].blocks[-1] in shown


def test_unsent_results_stay_until_no_request_has_room_for_them() -> None:
    path = [user(1), answer(2, [5000, 5000])]
    assert compaction_needed(path) is None
    assert compaction_needed(path, tokens=9_900) is None
    refused, counted = shortened(path, forced=True), shortened(path, tokens=10_100)
    assert refused == counted
    (made,) = shortenings_on(counted)
    assert (made.first, made.last, made.head, made.results) == ((1, 1), (1, 1), 5000, 2)
    assert estimate_size(counted).tokens < 3000
    assert compaction_needed(counted, tokens=10_100) is None, "there is nothing else"


def test_refusals_of_shortened_results_shorten_them_further_but_not_for_ever() -> None:
    path = [user(1), answer(2, [5000, 5000])]
    heads = []
    while compaction_needed(path, forced=True) is not None:
        path = shortened(path, forced=True)
        heads.append(shortenings_on(path)[-1].head)
    assert heads[0] == 5000
    assert heads == sorted(set(heads), reverse=True)
    assert len(heads) < 10


def test_a_turn_without_results_has_none_to_be_shortened() -> None:
    assert compaction_needed([user(1), answer(2)], forced=True) is None


def test_a_path_that_fits_is_left_alone() -> None:
    assert compaction_needed([user(1), answer(2, [3000], [3000])]) is None


def test_a_little_is_not_worth_the_cache() -> None:
    path = [user(1), answer(2, [900], [9000])]
    assert compaction_needed(path) is None
    assert compaction_needed([user(1), answer(2, [1200], [9000])]) is not None


def test_after_an_insufficient_shortening_the_turns_before_are_summarised() -> None:
    words = text(content="x" * 24_000)
    long = replace(turn_of(words, rounds=[sealed(1, "end_turn")], limits=LIMITS, status="complete"), id=UUID(int=2))
    path = [user(1), long, user(3), answer(4, [2000], [2000])]
    assert next_step(path[-1], path[:-1]) == Compact(3, UUID(int=2))


def test_without_turns_to_summarise_an_insufficient_shortening_is_done() -> None:
    path = [user(1, "x" * 28_000), answer(2, [2000], [2000])]
    assert isinstance(next_step(path[-1], path[:-1]), Shorten)


def test_a_shortened_result_is_not_shortened_again() -> None:
    path = run([user(1), answer(2, [8000], [2000])])
    grown = replace(path[-1], blocks=(*path[-1].blocks, *rounds_later(4, 3000, 3100)), rounds=rounds_to(5))
    again = run([path[0], grown], tokens=9000)
    first, second = shortenings_on(again)
    assert (first.last, second.first, second.last) == ((1, 1), (1, 2), (1, 4))
    assert second.results == 2


def test_without_turns_before_and_with_all_results_shortened_the_older_ones_are_omitted() -> None:
    sizes = [[600]] * 20
    path = shortened([user(1), answer(2, *sizes)])
    full = shortened(path, tokens=9000)
    first, second = shortenings_on(full)
    assert (first.head, second.head) == (500, 0)
    assert (second.first, second.last) == (first.first, first.last)
    assert (second.results, second.left_out) == (first.results, first.results * 500), "what it adds"
    oldest = full[-1].blocks[1]
    cut = shortening_of((1, 1), oldest, shortenings_on(full))
    assert cut == second
    assert estimate_size(full).tokens < estimate_size(path).tokens
    assert compaction_needed(full, tokens=9000) is None, "there is nothing else"


def test_a_short_result_is_not_replaced_by_a_note_as_long() -> None:
    path = [user(1), answer(2, *[[40]] * 50, [900])]
    assert compaction_needed(path, tokens=9000) is None


def rounds_later(number: int, *tokens: int) -> list[Block]:
    found = []
    for round, size in enumerate(tokens, number):
        found += [call(90, round, "z"), replace(result(91, round, "z"), text="x" * size * 4)]
    return found


def rounds_to(number: int) -> tuple[Round, ...]:
    return tuple(sealed(round) for round in range(1, number + 1))


def test_a_refusal_as_too_long_shortens_first_and_summarises_then() -> None:
    path = [user(1), answer(2, [2600], [100], status="complete"), user(3), answer(4)]
    unknown = [replace(turn, request=turn.request and replace(turn.request, limits=Limits())) for turn in path]
    for before in (path, unknown):
        assert next_step(before[-1], before[:-1]) == CallModel(1)
        block = compaction_needed(before, forced=True)
        assert isinstance(block, Block)
        after = [*before[:-1], replace(before[-1], blocks=(block,))]
        assert compaction_needed(after, forced=True) == UUID(int=2)


def test_figures_of_the_last_call_are_reduced_by_later_omissions() -> None:
    told = [replace(sealed(1), usage={"input_tokens": 8800}), replace(sealed(2), usage={"input_tokens": 9000})]
    path = run([user(1), replace(answer(2, [6000], [2000]), rounds=tuple(told))])
    size = estimate_size(path)
    assert size == SizeEstimate(9000 + 2001 - (24_000 - 500) // 4, 2001 + (24_000 - 500) // 4)
    later = (*path[-1].rounds, replace(sealed(3), usage={"input_tokens": 5100}))
    assert estimate_size([path[0], replace(path[-1], rounds=later)]) == SizeEstimate(5100, 0)


def test_without_figures_the_rest_of_results_is_counted_with_prompt_and_tools() -> None:
    path = run([user(1), answer(2, [8000], [2000])])
    without = estimate_size(path).tokens
    assert without == 2 + 2 * 1 + 126 + 2001
    asked = path[-1].request
    assert asked is not None
    more = replace(asked, system="s" * 40, tools=(ToolSpec("look", "d" * 20, "{}" * 8),), provider_tools=("p" * 20,))
    assert estimate_size([path[0], replace(path[-1], request=more)]).tokens == without + 25


def test_a_count_goes_before_an_estimate() -> None:
    path = [user(1), answer(2, [4000], [2000])]
    assert next_step(path[-1], path[:-1]) == CallModel(3)
    assert isinstance(next_step(path[-1], path[:-1], 8001), Shorten)
    long = [user(1), answer(2, [6000], [2500])]
    assert isinstance(next_step(long[-1], long[:-1]), Shorten)
    assert next_step(long[-1], long[:-1], 8000) == CallModel(3)


@pytest.mark.parametrize(
    ("known", "added", "near"),
    [(7900, 10, False), (7900, 100, True), (7950, 100, True), (8100, 100, False), (3000, 2000, False)],
)
def test_a_count_is_requested_if_it_could_change_the_next_step(known: int, added: int, near: bool) -> None:
    asked = replace(answer(2, [added - 1]), rounds=(replace(sealed(1), usage={"input_tokens": known}),))
    assert may_need_compaction([user(1), asked]) is near
    nobody_knows = replace(asked, request=asked.request and replace(asked.request, limits=Limits()))
    assert not may_need_compaction([user(1), nobody_knows])


def of_provider(turn: Turn, *edits: str) -> Turn:
    assert turn.request is not None
    limits = replace(turn.request.limits, compaction="provider", provider_edits=edits)
    return replace(turn, request=replace(turn.request, limits=limits))


def test_a_provider_that_does_it_by_itself_is_left_to_it_until_it_refuses() -> None:
    long = [user(1), answer(2, [8000], [2000], status="complete"), user(3), answer(4)]
    assert isinstance(next_step(long[-1], long[:-1]), Shorten)
    clears = [*long[:-1], of_provider(long[-1], "context_editing")]
    assert next_step(clears[-1], clears[:-1]) == Compact(1, UUID(int=2))
    summarises = [*long[:-1], of_provider(long[-1], "context_editing", "compaction")]
    assert next_step(summarises[-1], summarises[:-1]) == CallModel(1)
    assert not may_need_compaction(summarises)
    assert isinstance(compaction_needed(summarises, forced=True), Block)


def test_figures_of_calls_in_which_the_provider_left_something_out_say_nothing_of_others() -> None:
    cleared = replace(of_provider(answer(2, [4000]), "context_editing"), status="complete")
    told = replace(cleared, rounds=(replace(sealed(1), usage={"input_tokens": 100}),))
    assert estimate_size([user(1), told, user(3), of_provider(answer(4), "context_editing")]).tokens == 100 + 4001 + 2
    assert estimate_size([user(1), told, user(3), answer(4)]).guessed > 4000
    assert estimate_size([user(1), replace(told, request=None), user(3), answer(4)]).guessed > 4000


def test_a_shortening_with_turns_outside_of_the_path_is_ignored() -> None:
    path = run([user(1), answer(2, [8000], [2000])])
    assert shortenings_on([path[0], replace(path[-1], id=UUID(int=77))]) == ()
    empty = replace(path[-1].blocks[-1], data=None)
    assert shortenings_on([path[0], replace(path[-1], blocks=(empty,))]) == ()


def test_of_a_summarised_path_only_kept_turns_are_shortened() -> None:
    told = json.dumps({"type": SUMMARY, "through": str(UUID(int=2))})
    made = answer(4, [8000], [2000])
    blocks = (Block(0, 3, 1, SUMMARY, "In short.", told), *made.blocks)
    running = replace(made, blocks=blocks, rounds=(*made.rounds, sealed(3, COMPACTED)))
    path = [user(1), answer(2, [8000], status="complete"), user(3), running]
    (shortening,) = shortenings_on(run(path))
    assert (shortening.first, shortening.results) == ((3, 1), 1)


def with_files(path: Sequence[Turn], *, files: int) -> list[Turn]:
    """Replaces the content of each result in the running turn by `files` pictures."""
    layout = layout_of([{"type": "image", "source": {}}] * files)
    shown = [replace(b, text="", data=layout) if b.type == "tool_result" else b for b in path[-1].blocks]
    return [*path[:-1], replace(path[-1], blocks=tuple(shown))]


def test_pictures_of_older_results_are_left_out_too() -> None:
    path = with_files([user(1), answer(2, [1], [1], [1], [1])], files=2)
    after = run(path)
    (made,) = shortenings_on(after)
    assert (made.results, made.left_out, made.files) == (3, 0, 6)
    assert after[-1].blocks[-1].text.endswith("are sent shortened, without 6 of their files.")
    assert estimate_size(path).tokens - estimate_size(after).tokens == 6 * 1600


def test_figures_of_the_last_call_are_less_by_the_pictures_that_were_left_out_since() -> None:
    path = with_files([user(1), answer(2, [1], [1], [1])], files=3)
    known = [*path[-1].rounds[:-1], replace(path[-1].rounds[-1], usage={"input_tokens": 9000, "output_tokens": 0})]
    path = [*path[:-1], replace(path[-1], rounds=tuple(known))]
    assert estimate_size(path).tokens - estimate_size(run(path)).tokens == 6 * 1600


def test_a_block_of_an_earlier_version_counts_no_files() -> None:
    path = run([user(1), answer(2, [4000], [2500], [2400])])
    block = path[-1].blocks[-1]
    data = {name: value for name, value in json.loads(block.data or "").items() if name != "files"}
    before = replace(path[-1], blocks=(*path[-1].blocks[:-1], replace(block, data=json.dumps(data))))
    assert shortenings_on([*path[:-1], before]) == shortenings_on(path)

from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import begun, sealed, voided
from turnstream.domain.rounds import BilledTokens, Round, add_usage, billed_tokens, exact_sum, merge_usage

COUNTS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**9), max_size=3),
    lambda deeper: st.dictionaries(st.sampled_from("xyz"), deeper, max_size=3),
    max_leaves=6,
)


def test_a_later_figure_of_a_message_overwrites_and_a_missing_one_stays() -> None:
    known = {"input_tokens": 10, "output_tokens": 1, "service_tier": "standard", "cache_creation": {"a": 1, "b": 2}}
    news = {"output_tokens": 7, "input_tokens": None, "cache_creation": {"a": 5}, "speed": "fast"}
    assert merge_usage(known, news) == {
        "input_tokens": 10,
        "output_tokens": 7,
        "service_tier": "standard",
        "cache_creation": {"a": 5},
        "speed": "fast",
    }
    assert merge_usage({}, {"output_tokens": None}) == {}


def test_amounts_are_summed_as_the_decimal_numbers_that_they_are() -> None:
    assert add_usage({"cost": 0.1}, {"cost": 0.2}) == {"cost": 0.3}
    assert add_usage({"cost": 1}, {"cost": 0.1}) == {"cost": 1.1}
    assert exact_sum([0.1] * 3) == 0.3
    assert exact_sum([]) == 0


def test_rounds_are_summed_and_words_keep_the_latest() -> None:
    first = {"input_tokens": 10, "cache_creation": {"a": 1}, "service_tier": "batch", "cost": 0.5, "flag": True}
    second = {"input_tokens": 5, "cache_creation": {"a": 2, "b": 3}, "service_tier": "standard", "cost": 0.25}
    assert add_usage(first, second | {"output_tokens": 4, "flag": True, "inference_geo": None}) == {
        "input_tokens": 15,
        "output_tokens": 4,
        "cache_creation": {"a": 3, "b": 3},
        "service_tier": "standard",
        "cost": 0.75,
        "flag": True,
    }


def test_lists_of_two_rounds_follow_one_another() -> None:
    assert add_usage({"iterations": [{"a": 1}]}, {"iterations": [{"a": 2}]}) == {"iterations": [{"a": 1}, {"a": 2}]}
    assert add_usage({"iterations": 1}, {"iterations": [2]}) == {"iterations": [2]}


def test_a_figure_that_changes_its_shape_is_taken_as_it_comes() -> None:
    assert add_usage({"tokens": 3}, {"tokens": {"thinking": 1}}) == {"tokens": {"thinking": 1}}
    assert add_usage({"tokens": {"thinking": 1}}, {"tokens": 3}) == {"tokens": 3}
    assert add_usage({"tokens": "many"}, {"tokens": 3}) == {"tokens": 3}


def test_nothing_that_is_given_is_changed() -> None:
    left, right = {"cache": {"a": 1}}, {"cache": {"a": 2}}
    add_usage(left, right)
    merge_usage(left, right)
    assert (left, right) == ({"cache": {"a": 1}}, {"cache": {"a": 2}})


@given(st.lists(COUNTS, max_size=5))
def test_the_sum_does_not_depend_on_how_it_is_grouped(usages: list[dict[str, Any]]) -> None:
    one_by_one: dict[str, Any] = reduce(add_usage, usages, {})
    middle = len(usages) // 2
    empty: dict[str, Any] = {}
    halves = add_usage(reduce(add_usage, usages[:middle], empty), reduce(add_usage, usages[middle:], empty))
    assert one_by_one == halves


def test_a_round_is_begun_then_sealed_or_voided() -> None:
    assert [(round.sealed, round.voided) for round in (begun(), sealed(), voided())] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert Round(1, 2, sealed_by=3, stop_reason="end_turn").sealed


def test_a_cut_reply_has_spent_the_higher_of_report_and_estimate() -> None:
    usage = {"input_tokens": 7, "output_tokens": 3}
    assert Round(1, 1, usage=usage).spent == usage
    assert Round(1, 1, usage=usage, estimated_tokens=2).spent == usage
    assert Round(1, 1, usage=usage, estimated_tokens=9).spent == {"input_tokens": 7, "output_tokens": 9}
    assert Round(1, 1, estimated_tokens=9).spent == {"output_tokens": 9}


def test_tokens_are_billed_with_those_of_summaries_by_the_provider() -> None:
    summary = {"type": "compaction", "input_tokens": 7, "output_tokens": 2}
    usage = {
        "input_tokens": 1,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 300,
        "output_tokens": 4000,
        "iterations": [summary, {"type": "message", "input_tokens": 1}],
    }
    assert billed_tokens(usage) == BilledTokens(8, 20, 300, 4002)
    assert billed_tokens(usage).total == 4330


def test_a_figure_that_is_no_count_is_not_billed() -> None:
    assert billed_tokens({"input_tokens": "many", "cache_read_input_tokens": None, "output_tokens": -3}).total == 0
    assert billed_tokens({"output_tokens": 10**30}).output == 2**53

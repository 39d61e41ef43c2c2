import pytest

from turnstream.extensions.openai.usage import usage_of


@pytest.mark.parametrize(
    ("said", "figures"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4}, {"input_tokens": 10, "output_tokens": 4}),
        ({"input_tokens": 10, "output_tokens": 4}, {"input_tokens": 10, "output_tokens": 4}),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 7}},
            {"input_tokens": 3, "cache_read_input_tokens": 7},
        ),
        (
            {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}},
            {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
        ),
        ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 4}, {"input_tokens": 6, "cache_read_input_tokens": 4}),
        ({"prompt_tokens": 10, "cached_tokens": 4}, {"input_tokens": 6, "cache_read_input_tokens": 4}),
        ({"prompt_tokens": 3, "cache_read_input_tokens": 90}, {"input_tokens": 3, "cache_read_input_tokens": 90}),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}},
            {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 5}},
        ),
        (
            {"completion_tokens": 9, "reasoning_tokens": 0, "completion_tokens_details": {"reasoning_tokens": None}},
            {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 0}},
        ),
        ({"prompt_tokens": 1.0, "cost": 0.5}, {"input_tokens": 1, "cost": 0.5}),
        ({"prompt_tokens": True, "completion_tokens": "4", "cost": {"total": 1}, "prompt_tokens_details": None}, {}),
        ({}, {}),
        (None, {}),
        ([1], {}),
    ],
)
def test_figures_are_those_a_turn_keeps(said: object, figures: dict[str, object]) -> None:
    assert usage_of(said) == figures


def test_thinking_that_is_counted_apart_is_counted_in() -> None:
    said = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 150}
    apart = usage_of({**said, "completion_tokens_details": {"reasoning_tokens": 30}})
    within = usage_of({**said, "completion_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 120})
    assert (apart["output_tokens"], within["output_tokens"]) == (50, 20)

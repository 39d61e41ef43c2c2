"""Answers that the server assembles from the results of tools."""

from dataclasses import replace

import pytest

from tests.support.turns import turn_of
from turnstream.domain.assembly import ASSEMBLED, HANDOFF, assembled_answer, can_be_assembled, handoff_answer
from turnstream.domain.blocks import Block
from turnstream.domain.turns import Limits, OutputSpec, Turn, TurnError

ERROR = TurnError("overloaded_error", "Overloaded. It was called 6 times.", "req_1")


def call(round: int, id: str, input: str = "{}") -> Block:
    return Block(0, round, 1, "tool_use", input, tool_use_id=id, name="look")


def result(round: int, id: str, text: str = "seen", *, is_error: bool = False) -> Block:
    return Block(0, round, 1, "tool_result", text, tool_use_id=id, name="look", is_error=is_error)


def with_blocks(*blocks: Block) -> Turn:
    return replace(turn_of(), blocks=tuple(replace(block, index=index) for index, block in enumerate(blocks)))


def answer_of(*blocks: Block) -> str:
    return assembled_answer(with_blocks(*blocks), ERROR, 3)[1].text


def test_the_answer_is_a_round_of_its_own_behind_all_blocks() -> None:
    turn = with_blocks(call(1, "a"), result(1, "a"))
    round, block = assembled_answer(turn, ERROR, 2)
    assert (round.number, round.attempt, round.model, round.stop_reason) == (2, turn.attempt, None, ASSEMBLED)
    assert (block.index, block.round, block.type) == (2, 2, "text")
    assert block.text == (
        "The model could not finish this answer. Overloaded. It was called 6 times.\n\n"
        "These are the results of the tools that were run:\n\n**look**\n\n```\nseen\n```"
    )


def test_the_answer_of_an_agent_is_a_round_of_its_own() -> None:
    turn = with_blocks(call(1, "a"), result(1, "a", "# Whole"))
    round, block = handoff_answer(turn, turn.blocks[1], 2)
    assert (round.number, round.model, round.stop_reason) == (2, None, HANDOFF)
    assert (block.index, block.round, block.type, block.text) == (2, 2, "text", "# Whole")


def test_inputs_and_results_are_quoted_as_excerpts() -> None:
    long = answer_of(call(1, "a", '{"q": "`x`\n' + "y" * 200), result(1, "a", "# head\n" + "z" * 1000))
    assert '**look** `{"q": "\'x\' yyy' in long
    assert "```\n# head\nzzz" in long
    assert "z…" in long
    assert len(long) < 1200


def test_errors_are_marked_and_results_without_text_too() -> None:
    text = answer_of(call(1, "a"), result(1, "a", "no", is_error=True), call(2, "a"), result(2, "a", " "))
    assert "**look** (failed)\n\n```\nno\n```\n\n**look**\n\n```\n(no text)\n```" in text


def test_only_the_last_results_are_quoted() -> None:
    text = answer_of(*(result(number, "a", f"<{number}>") for number in range(1, 26)))
    assert "(Only the last 20: 5 before them are not quoted.)" in text
    assert "<5>" not in text
    assert "<6>" in text


@pytest.mark.parametrize(
    ("turn", "possible"),
    [
        (with_blocks(call(1, "a"), result(1, "a")), True),
        (with_blocks(call(1, "a"), result(1, "a", is_error=True)), False),
        (with_blocks(call(1, "a")), False),
    ],
)
def test_an_answer_needs_a_result_that_is_no_error(turn: Turn, possible: bool) -> None:
    assert can_be_assembled(turn) is possible
    assert turn.request is not None
    off = replace(turn.request, limits=Limits(on_provider_failure="fail"))
    structured = replace(turn.request, output=OutputSpec("{}"))
    assert not can_be_assembled(replace(turn, request=off))
    assert not can_be_assembled(replace(turn, request=structured))


def test_a_result_with_a_fence_of_its_own_does_not_end_the_quote() -> None:
    assert "\n````\na\n```\nb\n````" in answer_of(call(1, "a"), result(1, "a", "a\n```\nb"))

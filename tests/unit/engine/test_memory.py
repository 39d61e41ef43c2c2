"""What a turn remembers of its calls, read from its rows."""

from dataclasses import replace

import pytest

from app.domain.blocks import Block
from app.engine.memory import earlier_result, is_over_limit, over_limit, same_call
from app.tools.tool import Outcome
from tests.support.turns import call, result

HARMLESS = {"look"}


def write(index: int, round: int = 1, id: str = "w") -> Block:
    return replace(call(index, round, id), name="write")


def test_a_call_is_over_the_limit_when_so_many_of_its_tool_came_before_it_in_any_round() -> None:
    blocks = [call(0, 1, "a"), result(1, 1, "a"), call(2, 2, "b"), call(3, 2, "c")]
    assert [is_over_limit(block, blocks, 2) for block in blocks if block.is_call] == [False, False, True]
    assert not any(is_over_limit(block, blocks, None) for block in blocks)


def test_calls_of_other_tools_and_calls_that_were_cut_are_not_counted() -> None:
    blocks = [write(0), call(1, 1, "cut", interrupted=True), call(2, 1, "a")]
    assert not is_over_limit(blocks[-1], blocks, 1)


def test_a_call_over_the_limit_is_refused_with_the_number() -> None:
    text = "This call was not run: look may be called 2 times in one turn, and was."
    assert over_limit(call(), 2) == Outcome(text, kind="refused", notes={"calls_per_turn": 2})


def test_the_newest_result_of_an_identical_call_is_remembered_across_rounds() -> None:
    first, second, third = call(0, 1, "a"), call(2, 2, "b"), call(4, 3, "c")
    blocks = [first, result(1, 1, "a"), second, replace(result(3, 2, "b"), text="seen again"), third]
    assert earlier_result(third, blocks, HARMLESS) == Outcome("seen again", notes={"memo": "b"})
    assert earlier_result(second, blocks, HARMLESS) == Outcome("seen", notes={"memo": "a"}), "the future is not known"
    assert earlier_result(first, blocks, HARMLESS) is None


def test_an_id_that_is_used_again_stands_for_the_call_of_its_own_round() -> None:
    blocks = [call(0, 1, "a"), result(1, 1, "a"), replace(call(2, 2, "a"), text='{"n":2}'), result(3, 2, "a")]
    blocks[3] = replace(blocks[3], text="another")
    again = call(4, 3, "b")
    assert earlier_result(again, [*blocks, again], HARMLESS) == Outcome("seen", notes={"memo": "a"})


def test_a_failure_is_not_remembered() -> None:
    again = call(2, 2, "b")
    assert earlier_result(again, [call(), result(is_error=True), again], HARMLESS) is None
    before = [call(0, 1, "a"), result(1, 1, "a"), call(2, 2, "b"), result(3, 2, "b", is_error=True)]
    third = call(4, 3, "c")
    assert earlier_result(third, [*before, third], HARMLESS) == Outcome("seen", notes={"memo": "a"})


def test_nothing_from_before_a_call_that_may_have_changed_something_is_remembered() -> None:
    again = call(4, 3, "b")
    blocks = [call(0, 1, "a"), result(1, 1, "a"), write(2, 2), result(3, 2, "w"), again]
    assert earlier_result(again, blocks, HARMLESS) is None
    assert earlier_result(again, blocks, HARMLESS | {"write"}) == Outcome("seen", notes={"memo": "a"})
    later = write(5, 3)
    unharmed = [call(0, 1, "a"), result(1, 1, "a"), again, later]
    assert earlier_result(again, unharmed, HARMLESS) is not None, "what comes after the call changed nothing for it"


def test_what_a_person_had_run_with_another_input_is_no_answer_to_the_input_of_the_model() -> None:
    edited = replace(result(), notes='{"seconds":0.1,"approval":{"decision":"approve","input":"{\\"n\\":9}"}}')
    allowed = replace(result(), notes='{"approval":{"decision":"approve"}}')
    again = call(2, 2, "b")
    assert earlier_result(again, [call(), edited, again], HARMLESS) is None
    assert earlier_result(again, [call(), allowed, again], HARMLESS) == Outcome("seen", notes={"memo": "a"})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("{}", "", True),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', True),
        ('{"a":1}', '{"a":2}', False),
        ('{"a":', '{"a":', True),
        ('{"a":', "{}", False),
        ("[" * 100_000, "[" * 100_000, True),
    ],
)
def test_calls_are_the_same_when_their_inputs_say_the_same(one: str, other: str, same: bool) -> None:
    assert same_call(replace(call(), text=one), replace(call(), text=other)) == same
    assert not same_call(replace(call(), text=one), replace(write(0), text=one))

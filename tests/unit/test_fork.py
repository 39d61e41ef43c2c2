from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.turns import ask, begun, call, result, sealed, steer, text, turn_of, voided
from turnstream.domain.errors import Conflict, RequestRefused
from turnstream.domain.history import shortening_block, shortenings_on, summary_on
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnError
from turnstream.libraries.copies.cutting import FORKED, LEFT_OUT, cut_after, with_new_ids

TOOLS = turn_of(
    text(0, 1),
    call(1, 1, "a"),
    call(2, 1, "b"),
    result(3, 1, "b"),
    result(4, 1, "a"),
    text(5, 2, "seen"),
    rounds=[voided(1), sealed(1), sealed(2, "end_turn")],
    status="complete",
)


def cut(turn: Turn, index: int) -> tuple[list[tuple[str, str | None]], str | None, list[str | None]]:
    """Cuts the turn after a block. Returns the remaining blocks, and the stop reasons of the turn and of its rounds."""
    made = cut_after(turn, index).turn
    assert [block.index for block in made.blocks] == list(range(len(made.blocks)))
    blocks = [(block.type, block.tool_use_id) for block in made.blocks]
    return blocks, made.stop_reason, [round.stop_reason for round in made.rounds]


@pytest.mark.parametrize("index", [None, 5])
def test_a_whole_turn_stays_as_it_ended(index: int | None) -> None:
    failed = replace(TOOLS, status="error", stop_reason="error", error=TurnError("a", "b"))
    made = cut_after(failed, index)
    assert made.turn == replace(failed, rounds=failed.rounds[1:])
    assert (made.kept, made.cut_round) == (6, None)


def test_a_reply_that_is_cut_in_the_middle_has_a_stop_reason_of_its_own() -> None:
    assert cut(TOOLS, 0) == ([("text", None)], FORKED, [FORKED])


def test_calls_whose_results_are_cut_off_get_others() -> None:
    called = [("text", None), ("tool_use", "a")]
    assert cut(TOOLS, 1) == ([*called, ("tool_result", "a")], FORKED, [FORKED])
    both = [*called, ("tool_use", "b")]
    assert cut(TOOLS, 2) == ([*both, ("tool_result", "a"), ("tool_result", "b")], FORKED, ["tool_use"])
    assert cut(TOOLS, 3) == ([*both, ("tool_result", "b"), ("tool_result", "a")], FORKED, ["tool_use"])
    made = cut_after(TOOLS, 3)
    assert (made.kept, made.turn.blocks[-1].text, made.turn.blocks[-1].is_error) == (4, LEFT_OUT, True)
    assert cut(TOOLS, 4) == ([*both, ("tool_result", "b"), ("tool_result", "a")], FORKED, ["tool_use"])


def test_a_user_turn_is_cut_without_more_ado() -> None:
    user = replace(turn_of(text(0, 0), text(1, 0), status="complete"), role="user", request=None)
    assert cut_after(user, 0).turn == replace(user, blocks=user.blocks[:1])


def test_of_an_open_turn_complete_rounds_can_be_copied() -> None:
    waiting = replace(TOOLS, status="waiting", blocks=TOOLS.blocks[:4], asks=(ask("a"),), steers=(steer(),))
    made = cut_after(replace(waiting, rounds=(sealed(1),)), 3).turn
    assert (made.status, made.stop_reason, made.asks, made.steers) == ("complete", FORKED, (), ())
    running = replace(TOOLS, status="running", rounds=(sealed(1), begun(2)))
    assert [block.index for block in cut_after(running, 4).turn.blocks] == [0, 1, 2, 3, 4]
    for index in (5, None):
        with pytest.raises(Conflict, match="has not ended"):
            cut_after(running, index)


def test_a_block_that_there_is_not_is_refused() -> None:
    with pytest.raises(RequestRefused, match="from 0 to 5"):
        cut_after(TOOLS, 6)
    with pytest.raises(RequestRefused, match="none yet"):
        cut_after(turn_of(), 0)


def test_notes_about_other_turns_name_their_copies() -> None:
    old, new = UUID(int=10), UUID(int=20)
    path = [replace(TOOLS, id=old), turn_of(rounds=[Round(1, 1, stop_reason="compacted", sealed_by=1)])]
    data = f'{{"type":"summary","through":"{old}"}}'
    summary = replace(text(0, 1), type="summary", data=data)
    made = with_new_ids(summary, {old: new})
    found = summary_on([replace(TOOLS, id=new), replace(path[1], blocks=(made,))])
    assert found is not None
    assert found.through == new
    long = replace(result(1, 1, "a"), text="x" * 1000)
    shortened = replace(
        text(0, 1),
        type="shortened",
        data=(
            f'{{"first":{{"turn":"{old}","round":1}},"last":{{"turn":"{path[1].id}","round":1}},'
            '"head":10,"results":1,"left_out":900}'
        ),
    )
    copy = [replace(TOOLS, id=new, blocks=(long,)), replace(path[1], blocks=(with_new_ids(shortened, {old: new}),))]
    (shortening,) = shortenings_on(copy)
    assert (shortening.first, shortening.last) == ((0, 1), (1, 1))
    assert with_new_ids(shortening_block(shortening, copy), {}).data == shortening_block(shortening, copy).data
    assert with_new_ids(replace(summary, data=None), {old: new}).data is None

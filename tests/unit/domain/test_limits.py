"""Limits of rounds, calls and budgets inside a turn. The limit of rounds grows while the rounds make progress."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import ask, call, elicitation, result, sealed, text, turn_of, voided
from turnstream.domain.asks import Ask, job_question_id
from turnstream.domain.blocks import Block
from turnstream.domain.charges import root_of
from turnstream.domain.jobs import Job
from turnstream.domain.limits import FamilyUse, ReachedLimit, family_of, reached_limits, round_limit, spent_budget
from turnstream.domain.rounds import Prices, Round
from turnstream.domain.steps import CallModel, Fail, Finish, RunTools, next_step
from turnstream.domain.turns import Limits, OutputSpec, ToolSpec, Turn, TurnError

START = datetime(2026, 5, 1, tzinfo=UTC)
TOOL = ToolSpec("look", "", "{}")


def rounds_of(*results: str, limits: Limits, same_call: bool = False) -> Turn:
    """Returns a turn whose tool rounds have these results. `!` stands for a failed call."""
    blocks: list[Block] = []
    for number, words in enumerate(results, 1):
        asked = replace(call(2 * number, number, str(number)), text="{}" if same_call else f'{{"n":{number}}}')
        answered = replace(result(2 * number + 1, number, str(number), is_error=words == "!"), text=words)
        blocks += [asked, answered]
    return turn_of(*blocks, rounds=[sealed(number) for number in range(1, len(results) + 1)], limits=limits)


STRETCH = Limits(max_rounds=2, hard_max_rounds=4, max_failed_rounds=9)


@pytest.mark.parametrize(
    ("results", "limit"),
    [
        ((), 2),
        (("a",), 2),
        (("a", "b"), 3),
        (("a", "!"), 2),
        (("a", "b", "c"), 4),
        (("a", "b", "!"), 3),
        (("a", "b", "c", "d", "e"), 4),
    ],
)
def test_the_limit_of_rounds_stretches_by_one_after_each_that_makes_progress(
    results: tuple[str, ...], limit: int
) -> None:
    turn = rounds_of(*results, limits=STRETCH)
    assert round_limit(turn) == limit
    step = next_step(turn)
    if len(results) > limit:
        assert step == Finish("max_tool_rounds")
    else:
        assert step == CallModel(len(results) + 1, tools=len(results) < limit)


def test_the_same_result_of_the_same_call_is_no_progress() -> None:
    assert round_limit(rounds_of("a", "a", limits=STRETCH, same_call=True)) == 2
    assert round_limit(rounds_of("a", "b", limits=STRETCH, same_call=True)) == 3
    assert round_limit(rounds_of("a", "a", limits=STRETCH)) == 3, "another call"


def test_without_a_hard_limit_or_with_a_lower_one_nothing_stretches() -> None:
    assert round_limit(rounds_of("a", "b", limits=Limits(max_rounds=2))) == 2
    assert round_limit(rounds_of("a", "b", limits=Limits(max_rounds=2, hard_max_rounds=1))) == 2
    assert round_limit(rounds_of(limits=Limits(max_rounds=0, hard_max_rounds=3))) == 0


@given(st.lists(st.sampled_from("ab!"), max_size=8), st.integers(0, 4), st.none() | st.integers(0, 6), st.booleans())
def test_the_limit_only_grows_and_never_beyond_the_hard_one(
    results: list[str], most: int, hard: int | None, same: bool
) -> None:
    limits = Limits(max_rounds=most, hard_max_rounds=hard)
    turn = rounds_of(*results, limits=limits, same_call=same)
    so_far = [round_limit(turn, last) for last in range(len(results) + 1)]
    assert so_far == sorted(so_far)
    assert so_far == [round_limit(rounds_of(*results[:n], limits=limits, same_call=same)) for n in range(len(so_far))]
    assert most <= so_far[-1] <= max(most, hard or 0)


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["answer", "stop"])
def test_after_the_last_call_the_model_answers_without_tools_or_the_turn_ends(policy: str) -> None:
    limits = Limits(max_calls=2, on_max_rounds=policy)  # type: ignore[arg-type]
    turn = rounds_of("a", "b", limits=limits)
    assert next_step(turn) == (CallModel(3, tools=False) if policy == "answer" else Finish("max_calls"))
    assert next_step(rounds_of("a", "b", "c", limits=limits)) == Finish("max_calls")
    assert reached_limits(turn) == (ReachedLimit("max_calls", 2, 2),)
    assert reached_limits(rounds_of("a", limits=limits)) == ()


def test_calls_that_were_refused_in_a_round_with_others_do_not_end_the_turn() -> None:
    two = (call(0, 1, "a"), call(1, 1, "b"), result(2, 1, "a"), result(3, 1, "b"))
    turn = turn_of(*two, rounds=[sealed()], limits=Limits(max_calls=1))
    assert next_step(turn) == CallModel(2, tools=False)


# --- budgets ---------------------------------------------------------------------------------------------------------

USAGE = {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 10, "output_tokens": 10}


def used(limits: Limits, *blocks: Block, asks: tuple[Ask, ...] = ()) -> Turn:
    rounds = [replace(sealed(1), usage=USAGE, model="other"), replace(voided(2), usage=USAGE, estimated_tokens=20)]
    return replace(turn_of(*blocks, rounds=rounds, limits=limits, asks=asks), started_at=START)


@pytest.mark.parametrize(
    ("limits", "spent", "words"),
    [
        (Limits(budget_tokens=210), 210, "has used 210 tokens, and its `limits.budget_tokens` is 210."),
        (Limits(budget_tokens=211), None, ""),
        (Limits(budget_cost=0.0002, prices={"model": Prices(1.0, 10.0)}), 0.00029, "has used 0.00029 in cost"),
        (Limits(budget_cost=0.0003, prices={"model": Prices(1.0, 10.0)}), None, ""),
        (Limits(budget_cost=0.0003), None, ""),
        (Limits(budget_seconds=60), 61.0, "has used 61 seconds"),
        (Limits(budget_seconds=62), None, ""),
    ],
)
def test_a_budget_that_is_spent_ends_the_turn_before_the_next_call_of_the_model(
    limits: Limits, spent: float | None, words: str
) -> None:
    turn = used(limits, call(0), result(1))
    step = next_step(turn, now=START + timedelta(seconds=61))
    if spent is None:
        assert step == CallModel(2)
        return
    assert isinstance(step, Fail)
    assert (step.type, words in step.message) == ("budget", True)
    assert step.details is not None
    assert step.details["used"] == spent
    ended = replace(turn, status="error", error=TurnError(step.type, step.message, details=step.details))
    assert reached_limits(ended) == (ReachedLimit(**step.details),)


def test_a_budget_that_is_spent_refuses_the_calls_that_were_not_run_yet() -> None:
    step = next_step(used(Limits(budget_tokens=1), call(0)))
    assert step == RunTools(
        (call(0),),
        "This call was not run: the turn's budget is used up. The turn has used 210 tokens, and its"
        " `limits.budget_tokens` is 1.",
    )


def test_the_use_of_the_family_counts_for_a_turn_with_a_shared_budget() -> None:
    turn = used(Limits(budget_tokens=1000, budget_cost=2.5), call(0), result(1))
    assert next_step(turn, family=FamilyUse(999, 2.4)) == CallModel(2)
    step = next_step(turn, family=FamilyUse(1000, 2.4))
    assert isinstance(step, Fail)
    assert step.message == "The turn and its family have used 1,000 tokens, and its `limits.budget_tokens` is 1,000."
    assert spent_budget(turn, None, FamilyUse(0, 2.5)) == ReachedLimit("budget_cost", 2.5, 2.5)
    late = START + timedelta(seconds=60)
    slow = next_step(used(Limits(budget_seconds=1), call(0), result(1)), now=late, family=FamilyUse(0, 0))
    assert isinstance(slow, Fail)
    assert slow.message.startswith("The turn has used ")


def test_a_turn_shares_a_budget_with_the_turns_it_was_made_for_and_with_its_children() -> None:
    alone = used(Limits(budget_tokens=1000))
    child, tool = (Job(uuid4(), 1, "a", "scout", kind) for kind in ("child", "tool"))
    assert alone.request is not None
    assert family_of(alone) is None
    assert family_of(replace(alone, jobs=(tool,))) is None
    assert family_of(replace(alone, jobs=(tool, child))) == alone.id
    below = replace(alone, request=replace(alone.request, root_turn=(root := uuid4())))
    assert family_of(below) == root_of(below) == root
    assert family_of(replace(below, request=replace(alone.request, limits=Limits(), root_turn=root))) is None
    assert root_of(alone) is None
    assert root_of(replace(alone, request=None)) is None


def test_an_output_that_was_handed_over_is_judged_whatever_it_cost() -> None:
    turn = used(Limits(budget_tokens=1), call(0))
    assert turn.request is not None
    own = replace(turn.request, tools=(replace(TOOL, role="output"),), output=OutputSpec("{}"))
    assert next_step(replace(turn, request=own)) == RunTools((call(0),))


def test_a_call_that_is_refused_for_another_reason_stays_so() -> None:
    turn = turn_of(call(0), rounds=[sealed(1, "refusal")], limits=Limits(budget_tokens=1))
    assert next_step(turn) == RunTools((call(0),), "This call was not run: the reply was refused.")


def test_a_turn_that_has_its_answer_is_not_ended_by_its_budget() -> None:
    turn = turn_of(text(), rounds=[replace(sealed(1, "end_turn"), usage=USAGE)], limits=Limits(budget_tokens=1))
    assert next_step(turn) == Finish("end_turn")


def test_waits_for_a_person_are_no_part_of_the_time() -> None:
    def waited(id: str, round: int, asked: int, answered: int | None) -> Ask:
        answered_at = None if answered is None else START + timedelta(seconds=answered)
        return replace(ask(id, round), asked_at=START + timedelta(seconds=asked), answered_at=answered_at)

    asks = (waited("a", 1, 10, 20), waited("b", 1, 10, 40), waited("c", 2, 50, None), ask("d", 3))
    now = START + timedelta(seconds=60)
    assert spent_budget(used(Limits(budget_seconds=1), asks=asks), now) == ReachedLimit("budget_seconds", 1, 20.0)
    gone = replace(elicitation(), tool_use_id=job_question_id("c", 1, 0), asked_at=START)
    assert spent_budget(used(Limits(budget_seconds=1), asks=(*asks, gone)), now) == ReachedLimit(
        "budget_seconds", 1, 20.0
    )
    assert spent_budget(used(Limits(budget_seconds=1)), None) is None
    assert spent_budget(replace(used(Limits(budget_seconds=1)), started_at=None), now) is None


def test_a_limit_that_was_reached_is_named() -> None:
    assert reached_limits(rounds_of("a", limits=Limits(max_rounds=1))) == (ReachedLimit("max_rounds", 1, 1),)
    assert reached_limits(rounds_of("a", "b", "c", "d", limits=STRETCH)) == (ReachedLimit("hard_max_rounds", 4, 4),)
    assert reached_limits(rounds_of(limits=Limits(max_rounds=0))) == ()
    assert reached_limits(replace(turn_of(), request=None)) == ()
    structured = rounds_of("a", limits=Limits(max_rounds=1))
    assert structured.request is not None
    assert reached_limits(replace(structured, request=replace(structured.request, output=OutputSpec("{}")))) == ()
    assert reached_limits(replace(turn_of(), error=TurnError("budget", "", details=None))) == ()
    assert Round(1, 1).spent == {}

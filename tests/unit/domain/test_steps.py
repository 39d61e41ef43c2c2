from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.turns import (
    ask,
    begun,
    call,
    elicitation,
    result,
    sealed,
    sign_in,
    steer,
    text,
    turn_of,
    voided,
    words,
)
from turnstream.domain.asks import AnswerKind, Ask, AskAnswer, AskKind, Steer
from turnstream.domain.blocks import Block
from turnstream.domain.jobs import Job
from turnstream.domain.kinds import TEXT, THINKING, TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.rounds import Round
from turnstream.domain.steps import (
    INTERRUPTED,
    MAX_TOOL_ROUNDS,
    PAUSED,
    ApplySteers,
    AwaitClient,
    CallModel,
    Compact,
    Fail,
    Finish,
    HandOver,
    JudgeOutput,
    RunTools,
    Shorten,
    failed_rounds,
    next_step,
    open_round_number,
    tool_rounds,
    tools_have_failed,
    unanswered_calls,
)
from turnstream.domain.turns import Limits, RecoveryPolicy, RoundLimitPolicy, Turn


def test_a_turn_without_a_sealed_round_calls_the_model() -> None:
    assert next_step(turn_of()) == CallModel(1)
    assert next_step(turn_of(rounds=[voided(1), voided(1, attempt=2)])) == CallModel(1)


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "stop_sequence", "refusal", "brand_new"])
def test_a_reply_without_calls_is_the_end(stop_reason: str) -> None:
    assert next_step(turn_of(text(), rounds=[sealed(1, stop_reason)])) == Finish(stop_reason)


def test_a_seal_that_does_not_say_why_counts_as_the_end_of_the_turn() -> None:
    assert next_step(turn_of(rounds=[Round(1, 1, sealed_by=1)])) == Finish("end_turn")


@pytest.mark.parametrize("stop_reason", ["tool_use", "end_turn", "max_tokens", INTERRUPTED])
def test_calls_without_a_result_are_run_whatever_the_reply_stopped_for(stop_reason: str) -> None:
    turn = turn_of(call(0, id="a"), call(1, id="b"), rounds=[sealed(1, stop_reason)])
    assert next_step(turn) == RunTools((call(0, id="a"), call(1, id="b")))


def test_only_the_calls_that_have_no_result_yet_are_run() -> None:
    turn = turn_of(call(0, id="a"), call(1, id="b"), result(2, id="a"), rounds=[sealed()])
    assert next_step(turn) == RunTools((call(1, id="b"),))


def test_a_call_that_was_cut_is_never_run() -> None:
    turn = turn_of(text(), call(1, interrupted=True), rounds=[sealed(1, "max_tokens")])
    assert next_step(turn) == Finish("max_tokens")


def test_calls_of_a_refused_reply_are_answered_and_not_run() -> None:
    turn = turn_of(call(), rounds=[sealed(1, "refusal")])
    assert next_step(turn) == RunTools((call(),), refusal="This call was not run: the reply was refused.")
    assert next_step(turn_of(call(), result(is_error=True), rounds=[sealed(1, "refusal")])) == Finish("refusal")


def test_results_go_back_to_the_model() -> None:
    assert next_step(turn_of(call(), result(), rounds=[sealed()])) == CallModel(2)


def test_the_only_result_of_a_round_may_be_the_answer() -> None:
    answer = replace(result(), notes='{"handoff": true}')
    assert next_step(turn_of(call(), answer, rounds=[sealed()])) == HandOver(answer)
    failed = replace(answer, is_error=True)
    assert next_step(turn_of(call(), failed, rounds=[sealed()])) == CallModel(2)
    calls = call(0, id="a"), call(1, id="b")
    both = replace(answer, index=2, tool_use_id="a"), replace(answer, index=3, tool_use_id="b")
    assert next_step(turn_of(*calls, *both, rounds=[sealed()])) == CallModel(2)


def test_a_turn_that_must_stop_after_tools_ends_as_tool_use() -> None:
    limits = Limits(continue_after_tools=False)
    turn = turn_of(call(), rounds=[sealed()], limits=limits)
    assert next_step(turn) == RunTools((call(),))
    assert next_step(turn_of(call(), result(), rounds=[sealed()], limits=limits)) == Finish("tool_use")


def server_block(index: int, type: str, round: int = 1) -> Block:
    return Block(index, round, 1, type, tool_use_id="s", name="local_shell")


def test_a_reply_that_ends_in_a_call_for_the_providers_client_fails() -> None:
    asked = server_block(1, "server_tool_use")
    for stop in ("end_turn", "tool_use"):
        step = next_step(turn_of(text(), asked, rounds=[sealed(1, stop)]))
        assert isinstance(step, Fail)
        assert step.type == "client_tool"
        assert "called 'local_shell', a tool of its provider" in step.message
    for stop in ("max_tokens", "refusal"):
        assert next_step(turn_of(text(), asked, rounds=[sealed(1, stop)])) == Finish(stop)
    answered = server_block(2, "shell_tool_result")
    assert next_step(turn_of(text(), asked, answered, rounds=[sealed(1, "end_turn")])) == Finish("end_turn")
    spoken = text(2, content="It is there.")
    assert next_step(turn_of(text(), asked, spoken, rounds=[sealed(1, "end_turn")])) == Finish("end_turn")


def _after_rounds(count: int, limits: Limits, *, failing: bool = False) -> Turn:
    rounds = [sealed(number) for number in range(1, count + 1)]
    pairs = [
        (call(2 * n, round=n + 1, id=str(n)), result(2 * n + 1, round=n + 1, id=str(n), is_error=failing))
        for n in range(count)
    ]
    return turn_of(*(block for pair in pairs for block in pair), rounds=rounds, limits=limits)


def test_after_the_last_tool_round_the_model_answers_without_tools() -> None:
    limits = Limits(max_rounds=2)
    assert next_step(_after_rounds(1, limits)) == CallModel(2, tools=True)
    assert next_step(_after_rounds(2, limits)) == CallModel(3, tools=False)


def test_after_the_last_tool_round_the_turn_stops_where_the_policy_says_so() -> None:
    limits = Limits(max_rounds=2, on_max_rounds="stop")
    assert next_step(_after_rounds(1, limits)) == CallModel(2, tools=True)
    assert next_step(_after_rounds(2, limits)) == Finish(MAX_TOOL_ROUNDS)


def test_a_model_that_calls_tools_all_the_same_is_refused_and_the_turn_ends() -> None:
    turn = _after_rounds(2, Limits(max_rounds=1))
    unanswered = turn_of(*turn.blocks[:-1], rounds=turn.rounds, limits=Limits(max_rounds=1))
    refusal = "This call was not run: the limit of 1 tool rounds is reached."
    assert next_step(unanswered) == RunTools((turn.blocks[2],), refusal)
    assert next_step(turn) == Finish(MAX_TOOL_ROUNDS)


@pytest.mark.parametrize("policy", get_args(RoundLimitPolicy))
def test_without_tool_rounds_the_first_call_forbids_tools(policy: RoundLimitPolicy) -> None:
    limits = Limits(max_rounds=0, on_max_rounds=policy)
    assert next_step(turn_of(limits=limits)) == CallModel(1, tools=False)
    refusal = "This call was not run: the limit of 0 tool rounds is reached."
    assert next_step(turn_of(call(), rounds=[sealed()], limits=limits)) == RunTools((call(),), refusal)
    assert next_step(turn_of(call(), result(), rounds=[sealed()], limits=limits)) == Finish(MAX_TOOL_ROUNDS)


def test_after_rounds_of_nothing_but_failures_the_model_answers_without_tools() -> None:
    limits = Limits(max_rounds=9, max_failed_rounds=2)
    assert next_step(_after_rounds(1, limits, failing=True)) == CallModel(2, tools=True)
    assert next_step(_after_rounds(2, limits, failing=True)) == CallModel(3, tools=False)
    assert next_step(_after_rounds(2, limits)) == CallModel(3, tools=True)


def test_one_success_ends_a_run_of_failed_rounds() -> None:
    blocks = [
        call(0, 1),
        result(1, 1, is_error=True),
        call(2, 2),
        result(3, 2),
        call(4, 3),
        result(5, 3, is_error=True),
    ]
    assert [failed_rounds(blocks[:end]) for end in (0, 2, 4, 6)] == [0, 1, 0, 1]
    both = [call(0, id="a"), call(1, id="b"), result(2, id="a", is_error=True), result(3, id="b")]
    assert failed_rounds(both) == 0
    assert tool_rounds(blocks) == 3


@pytest.mark.parametrize("stop_reason", ["pause_turn", INTERRUPTED])
def test_a_paused_or_cut_reply_continues(stop_reason: str) -> None:
    assert next_step(turn_of(text(), rounds=[sealed(1, stop_reason)])) == CallModel(2)


@pytest.mark.parametrize("stop_reason", ["pause_turn", INTERRUPTED])
def test_a_reply_continued_after_the_last_tool_round_still_may_use_no_tools(stop_reason: str) -> None:
    limits = Limits(max_rounds=1)
    rounds = [sealed(1), sealed(2, stop_reason)]
    assert next_step(turn_of(call(), result(), text(2, 2), rounds=rounds, limits=limits)) == CallModel(3, tools=False)


def test_a_model_that_pauses_for_ever_is_ended() -> None:
    def after(pauses: int) -> object:
        rounds = [sealed(number, "pause_turn") for number in range(1, pauses + 1)]
        return next_step(turn_of(rounds=rounds, limits=Limits(max_rounds=2, max_recoveries=1)))

    assert [after(pauses) for pauses in (1, 2, 3)] == [
        CallModel(2),
        CallModel(3),
        Fail("not_finished", "The provider paused its reply 3 times in a row (pause_turn), and did not finish it."),
    ]


def test_an_interrupted_reply_continues_as_often_as_recoveries_allow_even_without_tool_rounds() -> None:
    limits = Limits(max_rounds=0, max_recoveries=2)
    rounds = [sealed(1, INTERRUPTED), sealed(2, INTERRUPTED)]
    assert next_step(turn_of(text(), text(1, 2), rounds=rounds, limits=limits)) == CallModel(3, tools=False)


def test_pauses_before_a_tool_round_do_not_count() -> None:
    limits = Limits(max_rounds=1, max_recoveries=0)
    rounds = [sealed(1, "pause_turn"), sealed(2), sealed(3, "pause_turn")]
    turn = turn_of(call(0, 2), result(1, 2), rounds=rounds, limits=limits)
    assert next_step(turn) == CallModel(4, tools=False)


def test_the_open_round_is_the_one_after_the_last_that_was_sealed() -> None:
    assert open_round_number(turn_of()) == 1
    assert open_round_number(turn_of(rounds=[begun(1)])) == 1
    assert open_round_number(turn_of(rounds=[voided(1), sealed(1, attempt=2), begun(2)])) == 2


def test_a_result_answers_only_a_call_of_its_own_round() -> None:
    blocks = [call(0, 1), result(1, 1), call(2, 2)]
    assert unanswered_calls(blocks) == (call(2, 2),)


# --- people ----------------------------------------------------------------------------------------------------------

TWO_CALLS = (call(0, id="a"), call(1, id="b"))


def test_calls_without_an_ask_run_while_others_wait() -> None:
    turn = turn_of(*TWO_CALLS, rounds=[sealed()], asks=[ask("a")])
    assert next_step(turn) == RunTools((TWO_CALLS[1],))


def test_a_call_waits_for_its_sign_in_and_not_for_a_question_of_a_run_that_is_gone() -> None:
    turn = turn_of(*TWO_CALLS, rounds=[sealed()], asks=[sign_in("a"), elicitation("b")])
    assert next_step(turn) == RunTools((TWO_CALLS[1],))
    assert next_step(replace(turn, blocks=(*TWO_CALLS, result(2, id="b")))) == AwaitClient((sign_in("a"),))
    done = replace(sign_in("a"), answer=AskAnswer("result"))
    assert next_step(replace(turn, asks=(done,))) == RunTools(TWO_CALLS)


def test_when_all_that_is_left_waits_for_a_person_the_turn_waits_in_the_order_of_the_calls() -> None:
    turn = turn_of(*TWO_CALLS, rounds=[sealed()], asks=[ask("b"), ask("a")])
    assert next_step(turn) == AwaitClient((ask("a"), ask("b")))
    settled = turn_of(*TWO_CALLS, result(2, id="a"), rounds=[sealed()], asks=[ask("b")])
    assert next_step(settled) == AwaitClient((ask("b"),))


def job(id: str = "a", *, settled: bool = False) -> Job:
    return Job(UUID(int=1), 1, id, "dig", "tool", settled=settled)


def test_a_turn_waits_for_a_job_until_it_is_settled_and_runs_its_other_calls_meanwhile() -> None:
    turn = replace(turn_of(*TWO_CALLS, rounds=[sealed()]), jobs=(job(),))
    assert next_step(turn) == RunTools((TWO_CALLS[1],))
    waiting = replace(turn, asks=(ask("b"),))
    assert next_step(waiting) == AwaitClient((ask("b"),), (job(),))
    assert next_step(replace(waiting, jobs=(job(settled=True),))) == RunTools((TWO_CALLS[0],))


def test_words_of_the_user_wait_for_the_end_of_a_job() -> None:
    turn = replace(turn_of(call(id="a"), rounds=[sealed()], steers=[steer()]), jobs=(job(),))
    assert next_step(turn) == AwaitClient((), (job(),))


@pytest.mark.parametrize("kind", get_args(AnswerKind))
def test_a_call_is_taken_up_whatever_the_answer_is(kind: AnswerKind) -> None:
    turn = turn_of(*TWO_CALLS, rounds=[sealed()], asks=[ask("a"), ask("b", answer=kind)])
    assert next_step(turn) == RunTools((TWO_CALLS[1],))


def test_an_ask_of_an_earlier_round_says_nothing_of_a_call_with_the_same_id() -> None:
    blocks = [call(0, 1), result(1, 1), call(2, 2)]
    turn = turn_of(*blocks, rounds=[sealed(1), sealed(2)], asks=[ask("a", round=1)])
    assert next_step(turn) == RunTools((call(2, 2),))


def test_calls_that_must_not_be_run_are_refused_whoever_was_asked() -> None:
    turn = turn_of(call(), rounds=[sealed(1, "refusal")], asks=[ask()])
    assert next_step(turn) == RunTools((call(),), refusal="This call was not run: the reply was refused.")


def test_a_steer_waits_for_the_results_and_is_applied_before_the_next_model_call() -> None:
    unanswered = turn_of(call(), rounds=[sealed()], steers=[steer(1), steer(2)])
    assert next_step(unanswered) == RunTools((call(),))
    waiting = replace(unanswered, asks=(ask(),))
    assert next_step(waiting) == AwaitClient((ask(),))
    answered = turn_of(call(), result(), rounds=[sealed()], steers=[steer(1), steer(2)])
    assert next_step(answered) == ApplySteers((steer(1), steer(2)))
    assert next_step(turn_of(call(), result(), words(2), rounds=[sealed()])) == CallModel(2)


def test_a_steer_before_the_first_reply_is_in_the_first_call() -> None:
    assert next_step(turn_of(steers=[steer()])) == ApplySteers((steer(),))
    assert next_step(turn_of(rounds=[voided()], steers=[steer()])) == ApplySteers((steer(),))
    assert next_step(turn_of(words(0, 0))) == CallModel(1)


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "refusal", INTERRUPTED])
def test_a_user_who_says_something_to_a_reply_that_ends_gets_another(stop_reason: str) -> None:
    rounds = [sealed(1, stop_reason)]
    assert next_step(turn_of(text(), rounds=rounds, steers=[steer()])) == ApplySteers((steer(),))
    assert next_step(turn_of(text(), words(1), rounds=rounds)) == CallModel(2)


def test_a_steer_to_an_earlier_round_does_not_continue_the_turn() -> None:
    turn = turn_of(text(0, 1), words(1, 1), text(2, 2), rounds=[sealed(1, "end_turn"), sealed(2, "end_turn")])
    assert next_step(turn) == Finish("end_turn")


@pytest.mark.parametrize(
    "limits", [Limits(continue_after_tools=False), Limits(max_rounds=1, on_max_rounds="stop"), Limits(max_rounds=0)]
)
def test_a_user_is_answered_even_where_the_turn_would_have_ended(limits: Limits) -> None:
    turn = turn_of(call(), result(), rounds=[sealed()], limits=limits, steers=[steer()])
    assert next_step(turn) == ApplySteers((steer(),))
    taken = turn_of(call(), result(), words(2), rounds=[sealed()], limits=limits)
    assert next_step(taken) == CallModel(2, tools=limits.max_rounds > 1)


def test_no_steer_is_applied_in_a_pause_since_the_provider_continues_from_its_last_word() -> None:
    turn = turn_of(text(), rounds=[sealed(1, "pause_turn")], steers=[steer()])
    assert next_step(turn) == CallModel(2)
    with_call = turn_of(call(), result(), rounds=[sealed(1, "pause_turn")], steers=[steer()])
    assert next_step(with_call) == CallModel(2)


def test_a_steer_in_a_pause_without_a_continuation_is_applied() -> None:
    rounds = [sealed(1, "pause_turn"), sealed(2, "pause_turn")]
    turn = turn_of(rounds=rounds, limits=Limits(max_rounds=1, max_recoveries=1), steers=[steer()])
    assert next_step(turn) == ApplySteers((steer(),))
    assert next_step(replace(turn, steers=(), blocks=(words(0, 2),))) == CallModel(3)


def test_a_steer_resets_the_count_of_failures() -> None:
    limits = Limits(max_rounds=9, max_failed_rounds=1)
    failed = (call(0, 1), result(1, 1, is_error=True))
    turn = turn_of(*failed, rounds=[sealed(1)], limits=limits)
    assert tools_have_failed(turn)
    assert next_step(turn) == CallModel(2, tools=False)
    spoken = replace(turn, blocks=(*failed, words(2, 1)))
    assert not tools_have_failed(spoken)
    assert next_step(spoken) == CallModel(2, tools=True)
    assert tools_have_failed(replace(turn, blocks=(*failed, words(2, 1, " \n")))), "a blank message is not sent"
    again = replace(spoken, blocks=(*spoken.blocks, call(3, 2), result(4, 2, is_error=True)))
    assert failed_rounds(again.blocks) == 1


def test_a_steer_to_an_answer_without_tools_also_resets_the_count_of_failures() -> None:
    limits = Limits(max_rounds=9, max_failed_rounds=1)
    blocks = (call(0, 1), result(1, 1, is_error=True), text(2, 2, "I could not."), words(3, 2, "Try again"))
    turn = turn_of(*blocks, rounds=[sealed(1), sealed(2, "end_turn")], limits=limits)
    assert next_step(turn) == CallModel(3, tools=True)


def test_the_failures_up_to_a_round_do_not_depend_on_later_rounds() -> None:
    blocks = [call(0, 1), result(1, 1, is_error=True), call(2, 2), result(3, 2, is_error=True), words(4, 2)]
    assert [failed_rounds(blocks, last) for last in (0, 1, 2, 3)] == [0, 1, 0, 0]
    later = [*blocks[:4], call(4, 3), result(5, 3)]
    assert [failed_rounds(later, last) for last in (1, 2, 3, None)] == [1, 2, 0, 0]


# --- any rows at all -------------------------------------------------------------------------------------------------

ROUNDS = st.builds(
    Round,
    number=st.integers(1, 4),
    attempt=st.integers(1, 3),
    stop_reason=st.none() | st.sampled_from(["end_turn", "tool_use", "pause_turn", INTERRUPTED, "voided", "refusal"]),
    sealed_by=st.none() | st.integers(1, 3),
)
BLOCKS = st.builds(
    Block,
    index=st.integers(0, 9),
    round=st.integers(0, 4),
    attempt=st.integers(0, 3),
    type=st.sampled_from([TEXT, THINKING, TOOL_USE, TOOL_RESULT, USER_TEXT, "server_tool_use"]),
    text=st.sampled_from(["", " ", "{}", "ahoy"]),
    tool_use_id=st.none() | st.sampled_from("abc"),
    is_error=st.booleans(),
    interrupted=st.booleans(),
    notes=st.none() | st.just('{"handoff":true}'),
)
LIMITS = st.builds(
    Limits,
    max_rounds=st.integers(0, 3),
    hard_max_rounds=st.none() | st.integers(0, 5),
    max_calls=st.none() | st.integers(0, 3),
    on_max_rounds=st.sampled_from(get_args(RoundLimitPolicy)),
    max_failed_rounds=st.integers(0, 3),
    continue_after_tools=st.booleans(),
    recovery=st.sampled_from(get_args(RecoveryPolicy)),
    max_recoveries=st.integers(0, 3),
)
ASKS = st.builds(
    Ask,
    round=st.integers(0, 4),
    tool_use_id=st.sampled_from("abc"),
    name=st.just("draw"),
    kind=st.sampled_from(get_args(AskKind)),
    digest=st.just(""),
    attempt=st.just(1),
    answer=st.none() | st.builds(AskAnswer, st.sampled_from(get_args(AnswerKind))),
)
STEERS = st.builds(Steer, st.uuids(), st.just((Block(0, 0, 0, TEXT, "Be quick"),)))
TURNS = st.builds(
    lambda blocks, rounds, limits, asks, steers: replace(
        turn_of(*blocks, rounds=rounds, limits=limits), asks=tuple(asks), steers=tuple(steers)
    ),
    st.lists(BLOCKS, max_size=8),
    st.lists(ROUNDS, max_size=6),
    LIMITS,
    st.lists(ASKS, max_size=3),
    st.lists(STEERS, max_size=2),
)


@given(TURNS)
def test_every_turn_has_a_next_step_that_leads_on(turn: Turn) -> None:
    match next_step(turn):
        case CallModel(number):
            assert all(round.number < number for round in turn.rounds[-1:] if round.sealed)
        case RunTools(calls):
            assert calls
            assert set(calls) <= set(unanswered_calls(turn.blocks))
        case AwaitClient(asks):
            assert asks
            assert all(ask.answer is None for ask in asks)
        case ApplySteers(steers):
            assert steers == turn.steers
        case Fail(type):
            last = [round.stop_reason for round in turn.rounds if round.sealed][-1]
            assert type == ("not_finished" if last in PAUSED else "client_tool")
        case HandOver(result):
            assert unanswered_calls(turn.blocks) == ()
            assert not turn.steers
            assert not result.is_error
            last_round = [round.number for round in turn.rounds if round.sealed][-1]
            assert [block for block in turn.blocks if block.type == TOOL_RESULT and block.round == last_round] == [
                result
            ]
        case JudgeOutput() | Shorten() | Compact():
            raise AssertionError("only structured turns are judged, and only long ones are summarised")
        case Finish(stop_reason):
            assert stop_reason
            assert not turn.steers

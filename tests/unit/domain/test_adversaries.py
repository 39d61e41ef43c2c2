"""Runs the decisions of the loop, without the engine, against misbehaving models: the turn always ends."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import tries
from tests.support.turns import turn_of
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.domain.rounds import Round
from turnstream.domain.steps import (
    INTERRUPTED,
    MAX_TOOL_ROUNDS,
    VOIDED,
    CallModel,
    Fail,
    Finish,
    RunTools,
    next_step,
    settle,
)
from turnstream.domain.turns import Limits, RecoveryPolicy, RoundLimitPolicy, Turn

Kind = Literal["text", "call", "cut call", "open text", "open call"]


@dataclass(frozen=True)
class Reply:
    """The result of one model call: closed and open blocks, and the stop reason, which is None for a broken stream."""

    kinds: tuple[Kind, ...] = ("text",)
    stop_reason: str | None = "end_turn"


Model = Callable[[CallModel], Reply]


class Loop:
    """Carries out the steps as the executor does, but on values instead of rows."""

    def __init__(self, limits: Limits, model: Model, tools_fail: bool) -> None:
        self.turn = turn_of(limits=limits)
        self.told: list[CallModel] = []
        self._model = model
        self._tools_fail = tools_fail

    def run(self) -> str:
        for _ in range(_most_steps(self._limits())):
            match next_step(self.turn):
                case CallModel() as step:
                    self.told.append(step)
                    if not self._call_model(step, self._model(step)):
                        return "error"
                case RunTools(calls, refusal):
                    for call in calls:
                        self._settle_call(call, self._tools_fail or refusal is not None)
                case Finish(stop_reason):
                    return stop_reason
                case Fail(type):
                    return type
                case step:
                    raise AssertionError(f"nobody was asked, nobody spoke: {step}")
        raise AssertionError("the loop does not end")

    def _limits(self) -> Limits:
        assert self.turn.request is not None
        return self.turn.request.limits

    def _call_model(self, step: CallModel, reply: Reply) -> bool:
        round = Round(step.round, 1, messages=1)
        self.turn = replace(self.turn, rounds=(*self.turn.rounds, round))
        open_blocks = self._say(step.round, reply)
        if reply.stop_reason is not None:
            self._seal(reply.stop_reason, open_blocks, recoveries=0)
            return True
        recoveries = self.turn.recoveries + 1
        match settle(self.turn, open_blocks[0] if open_blocks else None, recoveries):
            case "seal" | "keep":
                self._seal(INTERRUPTED, open_blocks, recoveries=recoveries)
            case "void":
                self._void(step.round, recoveries)
            case "give_up":
                return False
        return True

    def _say(self, round: int, reply: Reply) -> list[Block]:
        """Adds the closed blocks of the reply to the turn, and returns the blocks that stay open."""
        left_open: list[Block] = []
        for kind in reply.kinds:
            type = TEXT if kind.endswith("text") else TOOL_USE
            index = len(self.turn.blocks) + len(left_open)
            block = Block(index, round, 1, type, "ahoy", tool_use_id=f"call-{index}", interrupted=kind == "cut call")
            if kind.startswith("open"):
                left_open.append(replace(block, interrupted=True))
            else:
                self._add(block)
        return left_open

    def _seal(self, stop_reason: str, left_open: Sequence[Block], recoveries: int) -> None:
        sealed = replace(self.turn.rounds[-1], stop_reason=stop_reason, sealed_by=1)
        self._add(*left_open)
        self.turn = replace(self.turn, rounds=(*self.turn.rounds[:-1], sealed), recoveries=recoveries)

    def _void(self, number: int, recoveries: int) -> None:
        gone = replace(self.turn.rounds[-1], stop_reason=VOIDED)
        kept = tuple(block for block in self.turn.blocks if block.round != number)
        self.turn = replace(self.turn, rounds=(*self.turn.rounds[:-1], gone), blocks=kept, recoveries=recoveries)

    def _settle_call(self, call: Block, is_error: bool) -> None:
        index = len(self.turn.blocks)
        self._add(replace(call, index=index, type=TOOL_RESULT, is_error=is_error))

    def _add(self, *blocks: Block) -> None:
        self.turn = replace(self.turn, blocks=(*self.turn.blocks, *blocks))


def _most_steps(limits: Limits) -> int:
    """Returns an upper limit of steps: all tool rounds, the pauses between them, and each reply with every retry after
    an interruption.
    """
    tool_rounds = limits.max_rounds + 1
    pauses = max(limits.max_rounds, limits.max_recoveries) + 1
    replies = (tool_rounds + 1) * (pauses + 1)
    return replies * (limits.max_recoveries + 1) + tool_rounds + 1


def _assert_every_call_has_one_result(turn: Turn) -> None:
    calls = Counter((block.round, block.tool_use_id) for block in turn.blocks if block.is_call)
    results = Counter((block.round, block.tool_use_id) for block in turn.blocks if block.type == TOOL_RESULT)
    assert calls == results
    assert all(count == 1 for count in results.values())


def _always(*kinds: Kind, stop_reason: str | None) -> Model:
    return lambda _: Reply(kinds, stop_reason)


MODELS = {
    "answers": (_always("text", stop_reason="end_turn"), "end_turn"),
    "calls tools for ever, even when told not to": (_always("call", "call", stop_reason="tool_use"), MAX_TOOL_ROUNDS),
    "calls tools and says it is done": (_always("call", stop_reason="end_turn"), MAX_TOOL_ROUNDS),
    "pauses for ever": (_always("text", stop_reason="pause_turn"), "not_finished"),
    "pauses for ever with calls": (_always("call", stop_reason="pause_turn"), MAX_TOOL_ROUNDS),
    "refuses": (_always("text", stop_reason="refusal"), "refusal"),
    "refuses after it has called": (_always("call", stop_reason="refusal"), "refusal"),
    "runs out of tokens after a call": (_always("text", "call", stop_reason="max_tokens"), MAX_TOOL_ROUNDS),
    "runs out of tokens within a call": (_always("text", "cut call", stop_reason="max_tokens"), "max_tokens"),
    "runs out of tokens in a second call": (_always("call", "cut call", stop_reason="max_tokens"), MAX_TOOL_ROUNDS),
    "says nothing": (_always(stop_reason="end_turn"), "end_turn"),
    "stops for tools and calls none": (_always("text", stop_reason="tool_use"), "tool_use"),
    "says our own words": (_always("text", stop_reason=INTERRUPTED), INTERRUPTED),
    "breaks off for ever": (_always("open text", stop_reason=None), "error"),
    "breaks off before it says anything": (_always(stop_reason=None), "error"),
    "breaks off within a call": (_always("text", "open call", stop_reason=None), "error"),
    "breaks off after a call": (_always("call", "open text", stop_reason=None), MAX_TOOL_ROUNDS),
}


@pytest.mark.parametrize("tools_fail", [False, True])
@pytest.mark.parametrize("policy", get_args(RecoveryPolicy))
@pytest.mark.parametrize("max_rounds", [0, 1, 5])
@pytest.mark.parametrize("name", MODELS)
def test_the_loop_ends_with_a_model_that(name: str, max_rounds: int, policy: RecoveryPolicy, tools_fail: bool) -> None:
    model, stop_reason = MODELS[name]
    loop = Loop(Limits(max_rounds=max_rounds, recovery=policy), model, tools_fail)
    assert loop.run() == stop_reason
    _assert_every_call_has_one_result(loop.turn)


def test_a_model_that_calls_tools_for_ever_is_asked_for_an_answer_once() -> None:
    loop = Loop(Limits(max_rounds=3), MODELS["calls tools for ever, even when told not to"][0], tools_fail=False)
    loop.run()
    assert [step.tools for step in loop.told] == [True, True, True, False]


def test_no_more_than_the_tool_rounds_are_asked_for_when_the_policy_is_to_stop() -> None:
    limits = Limits(max_rounds=3, on_max_rounds="stop")
    loop = Loop(limits, MODELS["calls tools for ever, even when told not to"][0], tools_fail=False)
    loop.run()
    assert [step.tools for step in loop.told] == [True, True, True]


def test_a_model_whose_every_stream_breaks_is_tried_as_often_as_recoveries_allow() -> None:
    for policy in get_args(RecoveryPolicy):
        loop = Loop(Limits(recovery=policy, max_recoveries=3), MODELS["breaks off for ever"][0], tools_fail=False)
        assert loop.run() == "error"
        assert len(loop.told) == 4


LIMITS = st.builds(
    Limits,
    max_rounds=st.integers(0, 3),
    on_max_rounds=st.sampled_from(get_args(RoundLimitPolicy)),
    max_failed_rounds=st.integers(1, 3),
    continue_after_tools=st.booleans(),
    recovery=st.sampled_from(get_args(RecoveryPolicy)),
    max_recoveries=st.integers(0, 3),
)
CLOSED: st.SearchStrategy[list[Kind]] = st.lists(st.sampled_from(["text", "call", "cut call"]), max_size=3)
OPEN: st.SearchStrategy[list[Kind]] = st.lists(st.sampled_from(["open text", "open call"]), max_size=1)
STOP_REASONS = st.none() | st.sampled_from(
    ["end_turn", "tool_use", "pause_turn", "max_tokens", "refusal", INTERRUPTED, "cancelled", "error", "brand_new"]
)
REPLIES = st.builds(lambda closed, left, why: Reply((*closed, *left), why), CLOSED, OPEN, STOP_REASONS)


@settings(max_examples=tries(300))
@given(LIMITS, st.booleans(), st.data())
def test_the_loop_ends_with_any_model(limits: Limits, tools_fail: bool, data: st.DataObject) -> None:
    loop = Loop(limits, lambda _: data.draw(REPLIES), tools_fail)
    assert loop.run()
    _assert_every_call_has_one_result(loop.turn)


@given(LIMITS, st.lists(REPLIES, min_size=1, max_size=4), st.booleans())
def test_the_loop_ends_with_a_model_that_repeats_itself_for_ever(
    limits: Limits, replies: list[Reply], tools_fail: bool
) -> None:
    rounds = iter(range(10**6))
    loop = Loop(limits, lambda _: replies[next(rounds) % len(replies)], tools_fail)
    assert loop.run()
    _assert_every_call_has_one_result(loop.turn)

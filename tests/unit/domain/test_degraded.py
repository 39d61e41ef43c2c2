"""The policies and limits that acted on a turn, as derived from the notes of its results."""

import json
from dataclasses import replace
from typing import Any

from tests.support.turns import call, result, sealed, text, turn_of, voided, words
from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.blocks import Block
from turnstream.domain.degraded import (
    ALL_TOOLS_FAILED,
    ASSEMBLED_ANSWER,
    FALLBACK_MODEL,
    HOOK_FAILURES,
    Degraded,
    degraded,
)
from turnstream.domain.turns import Limits


def noted(index: int, name: str = "look", **notes: Any) -> Block:
    return replace(result(index), name=name, notes=json.dumps(notes))


def test_each_policy_that_was_needed_names_its_result() -> None:
    turn = turn_of(
        call(0),
        noted(1, retries=2, seconds=0.3, cut={"shown": 1, "of": 2}),
        noted(2, "find", fallback={"tool": "look"}),
    )
    assert degraded(turn) == (
        Degraded("retries", 1, "look"),
        Degraded("cut", 1, "look"),
        Degraded("fallback", 2, "find"),
    )


def test_a_complete_result_is_not_named() -> None:
    turn = turn_of(noted(0, seconds=1.0), noted(1, memo="a"), noted(2, approval={"decision": "approve"}), result(3))
    assert degraded(turn) == ()


def test_notes_on_other_blocks_are_no_policies() -> None:
    turn = turn_of(replace(words(), notes='{"steer": "1"}'), replace(text(1), notes='{"cut": 1}'))
    assert degraded(turn) == ()


def test_a_turn_whose_tools_all_failed_says_so_as_a_whole() -> None:
    blocks = (call(0, 1), replace(result(1, 1, is_error=True), notes='{"timeout": 30}'))
    turn = turn_of(*blocks, rounds=[sealed()], limits=Limits(max_failed_rounds=1))
    assert degraded(turn) == (Degraded("timeout", 1, "look"), Degraded(ALL_TOOLS_FAILED))
    assert degraded(turn_of(*blocks, rounds=[sealed()], limits=Limits(max_failed_rounds=2)))[1:] == ()


def test_a_turn_without_a_request_asked_for_nothing() -> None:
    assert degraded(replace(turn_of(), request=None)) == ()


def test_a_cut_reply_is_named_with_its_cost() -> None:
    unseen = replace(voided(2), estimated_tokens=0)
    seen = replace(voided(2, attempt=2), estimated_tokens=12, usage={"output_tokens": 30})
    kept = replace(sealed(1, "interrupted"), estimated_tokens=12, usage={"output_tokens": 1})
    assert degraded(turn_of(rounds=[kept, unseen, seen, sealed(2, "end_turn", attempt=3)])) == (
        Degraded("continued", round=1, output_tokens=12, estimated=True),
        Degraded("rewritten", round=2, output_tokens=30),
    )


def test_another_model_for_an_answer_is_a_fallback_and_for_a_summary_none() -> None:
    rounds = [replace(sealed(1, "compacted"), model="small"), replace(sealed(2, "end_turn"), model="model")]
    assert degraded(turn_of(rounds=rounds)) == ()
    assert degraded(turn_of(rounds=[replace(rounds[1], model="other")])) == (Degraded(FALLBACK_MODEL),)


def test_an_assembled_answer_and_hooks_that_failed_are_named_for_the_turn() -> None:
    turn = replace(turn_of(rounds=[sealed(1, ASSEMBLED)]), hook_failures=2)
    assert degraded(turn) == (Degraded(ASSEMBLED_ANSWER), Degraded(HOOK_FAILURES))

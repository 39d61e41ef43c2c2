from dataclasses import replace

import pytest

from tests.support.turns import begun, call, result, sealed, text, turn_of
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, THINKING, TOOL_USE
from turnstream.domain.rounds import Round
from turnstream.domain.steps import Settlement, settle, text_to_continue
from turnstream.domain.turns import Limits, RecoveryPolicy

RETRY: RecoveryPolicy = "retry"
CONTINUE: RecoveryPolicy = "continue"
OPEN_TEXT = text(1, content="and then")
THOUGHT = Block(0, 1, 1, THINKING, "hm")


def _open(type: str, content: str) -> Block:
    return Block(1, 1, 1, type, content)


@pytest.mark.parametrize(
    ("policy", "closed", "open_block", "settlement"),
    [
        (RETRY, [], None, "void"),
        (RETRY, [text()], None, "void"),
        (RETRY, [text()], OPEN_TEXT, "void"),
        (RETRY, [THOUGHT], None, "void"),
        (RETRY, [call()], None, "seal"),
        (RETRY, [text(), call(1)], OPEN_TEXT, "seal"),
        (RETRY, [call(interrupted=True)], None, "void"),
        (RETRY, [], _open(TOOL_USE, '{"pa'), "void"),
        (CONTINUE, [], None, "void"),
        (CONTINUE, [text()], None, "keep"),
        (CONTINUE, [], OPEN_TEXT, "keep"),
        (CONTINUE, [THOUGHT], OPEN_TEXT, "keep"),
        (CONTINUE, [THOUGHT], None, "void"),
        (CONTINUE, [], _open(THINKING, "hm"), "void"),
        (CONTINUE, [], _open(TOOL_USE, '{"pa'), "void"),
        (CONTINUE, [], _open(TEXT, " \n"), "void"),
        (CONTINUE, [text(content="")], None, "void"),
        (CONTINUE, [text(), call(1)], None, "seal"),
    ],
)
@pytest.mark.parametrize("recoveries", [0, 2])
def test_an_interrupted_round_is_settled_by_one_rule(
    policy: RecoveryPolicy, closed: list[Block], open_block: Block | None, settlement: Settlement, recoveries: int
) -> None:
    limits = Limits(recovery=policy, max_recoveries=2)
    turn = turn_of(*closed, rounds=[begun()], limits=limits)
    assert settle(turn, open_block, recoveries) == settlement


@pytest.mark.parametrize("policy", [RETRY, CONTINUE])
def test_one_interruption_too_many_is_given_up_unless_there_are_calls_to_run(policy: RecoveryPolicy) -> None:
    limits = Limits(recovery=policy, max_recoveries=2)
    assert settle(turn_of(text(), rounds=[begun()], limits=limits), None, 3) == "give_up"
    assert settle(turn_of(call(), rounds=[begun()], limits=limits), None, 3) == "seal"


def test_without_recoveries_an_interruption_that_nobody_is_charged_for_is_still_settled() -> None:
    turn = turn_of(text(), rounds=[begun()], limits=Limits(max_recoveries=0))
    assert settle(turn, None, 0) == "keep"
    assert settle(turn, None, 1) == "give_up"


def test_only_the_blocks_of_the_open_round_count() -> None:
    rounds: list[Round] = [sealed(1), begun(2)]
    turn = turn_of(text(), call(1), result(2), rounds=rounds, limits=Limits(recovery="continue"))
    assert settle(turn, None, 0) == "void"


CUT = text(0, content="Half a ", interrupted=True)


@pytest.mark.parametrize(
    ("blocks", "rounds", "continued"),
    [
        ([CUT], [sealed(1, "interrupted")], ("", "Half a ")),
        ([CUT], [sealed(1, "interrupted"), begun(2)], ("", "Half a ")),
        ([CUT], [sealed(1, "cancelled")], ("", "")),
        ([], [], ("", "")),
        # a thought precedes the interrupted text, and half a call follows it
        ([THOUGHT, replace(CUT, index=1), call(2, interrupted=True)], [sealed(1, "interrupted")], ("", "Half a ")),
        # the continuation was interrupted too
        (
            [CUT, text(1, 2, "sen", interrupted=True)],
            [sealed(1, "interrupted"), sealed(2, "interrupted")],
            ("", "Half a sen"),
        ),
        # text that precedes a result is not continued
        ([text(0), call(1), result(2)], [sealed(1, "interrupted")], (text(0).text, "")),
        # the text from before the call is the earlier text
        (
            [text(0, content="Let me see."), call(1), result(2), text(3, 2, "Half", interrupted=True)],
            [sealed(1, "tool_use"), sealed(2, "interrupted")],
            ("Let me see.", "Half"),
        ),
        ([CUT, text(1, 2, "a sentence")], [sealed(1, "interrupted"), sealed(2, "end_turn")], ("", "")),
    ],
)
def test_the_next_reply_continues_the_text_that_was_cut_off(
    blocks: list[Block], rounds: list[Round], continued: tuple[str, str]
) -> None:
    assert text_to_continue(turn_of(*blocks, rounds=rounds)) == continued

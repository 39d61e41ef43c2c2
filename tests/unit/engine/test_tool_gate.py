"""The gate of tool calls: each decision is tested with rows that lead to this decision."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.turns import call, result, sign_in, turn_of
from turnstream.domain.asks import Ask, AskAnswer, AskKind, Grant, digest_of
from turnstream.domain.blocks import Block, CallKey
from turnstream.domain.jobs import Job
from turnstream.domain.kinds import TEXT
from turnstream.domain.output import output_tools
from turnstream.domain.turns import Limits, OutputSpec, ToolSpec, Turn, TurnRequest
from turnstream.engine.tool_gate import (
    NO_JOBS,
    OUTCOME_UNKNOWN,
    SIGNED_IN,
    RunCall,
    SettleUnrun,
    StartJob,
    ToolGate,
    earlier_result,
    is_over_limit,
    outcome_of_answer,
    over_limit,
    same_call,
    with_approval,
    with_grants,
)
from turnstream.storage.rows import to_json
from turnstream.tools.outputs import as_call
from turnstream.tools.tool import File, Outcome, tool
from turnstream.tools.toolset import Toolset

NOW = datetime(2026, 11, 22, tzinfo=UTC)
PAY = Ask(1, "a", "pay", "approval", "0" * 64, 1)


@tool(read_only=True, memo=True)
async def look(n: int = 0) -> str:
    """Look."""
    return str(n)


@tool(read_only=True, calls_per_turn=1)
async def ring() -> str:
    """Ring."""
    return ""


@tool()
async def put() -> str:
    """Put."""
    return ""


@tool(retry_safe=True)
async def keep() -> str:
    """Keep."""
    return ""


@tool(read_only=True, approval=lambda input: input.get("n") == 9, approval_expiry=60)
async def pay(n: int = 0) -> str:
    """Pay."""
    return str(n)


EDITED = AskAnswer("approve", input='{"euros":1}')
CLIENT = ToolSpec("where", "Where the user is.", "{}", client=True)
TOOLS = (look, ring, put, keep, pay)
TOOLSET = Toolset(TOOLS)
OUTPUT = OutputSpec("{}", handler="refine")


def gate_of(
    *blocks: Block,
    asks: Sequence[Ask] = (),
    started_before: frozenset[CallKey] = frozenset(),
    running: Mapping[CallKey, object] | None = None,
    limits: Limits | None = None,
    output: OutputSpec | None = None,
) -> ToolGate:
    tools = (*(each.spec for each in TOOLS), CLIENT, *(output_tools(output) if output else ()))
    request = TurnRequest("model", tools=tools, limits=limits or Limits(), output=output)
    turn: Turn = replace(turn_of(*blocks, asks=asks), request=request)
    return ToolGate(turn, TOOLSET, started_before, (running or {}).keys())


def named(name: str, index: int = 0, round: int = 1, id: str = "a", input: str = "{}") -> Block:
    return replace(call(index, round, id), name=name, text=input)


def ask_for(block: Block, kind: AskKind = "approval", answer: AskAnswer | None = None) -> Ask:
    assert block.tool_use_id is not None
    assert block.name is not None
    return Ask(block.round, block.tool_use_id, block.name, kind, digest_of(block), 1, answer=answer)


# --- decisions -------------------------------------------------------------------------------------------------------


def test_a_call_that_nothing_speaks_against_is_run_with_its_input() -> None:
    block = named("put", input='{"n":1}')
    assert gate_of(block).decide(block) == RunCall('{"n":1}')


def test_a_refusal_of_the_round_settles_every_call_even_one_whose_outcome_is_known() -> None:
    blocks = [named("look"), result(), named("look", 2, 2, "b")]
    assert gate_of(*blocks).decide(blocks[2], "No more.") == SettleUnrun(Outcome("No more.", kind="refused"))


@pytest.mark.parametrize(
    ("name", "unknown"), [("put", True), ("look", False), ("keep", False), ("where", True), ("unheard_of", False)]
)
def test_a_call_that_an_earlier_attempt_started_is_run_again_only_where_that_does_no_harm(
    name: str, unknown: bool
) -> None:
    block = named(name)
    decision = gate_of(block, started_before=frozenset({(1, "a")})).decide(block)
    assert decision == (SettleUnrun(Outcome(OUTCOME_UNKNOWN, is_error=True), "unknown") if unknown else RunCall("{}"))


def test_an_id_of_another_round_was_not_started_before() -> None:
    block = named("put", 2, 2)
    assert gate_of(block, started_before=frozenset({(1, "a")})).decide(block) == RunCall("{}")


# --- jobs ------------------------------------------------------------------------------------------------------------


@tool(background=True, approval=lambda input: input.get("n") == 9)
async def dig(n: int = 0) -> str:
    """Dig."""
    return str(n)


@tool(background=True, read_only=True, calls_per_turn=1)
async def scan() -> str:
    """Scan."""
    return ""


def gate_with_job(block: Block, job: Job | None, **given: Any) -> ToolGate:
    gate, tools = gate_of(block, **given), (dig, scan)
    assert gate.turn.request is not None
    request = replace(gate.turn.request, tools=tuple(each.spec for each in tools))
    turn = replace(gate.turn, request=request, jobs=() if job is None else (job,))
    return replace(gate, turn=turn, toolset=Toolset(tools))


def job_of(block: Block, outcome: str | None = None) -> Job:
    return Job(uuid4(), *block.key, block.name or "", "tool", settled=outcome is not None, outcome=outcome)


def test_a_call_of_a_background_tool_becomes_a_job_once_nothing_else_settles_it() -> None:
    block = named("dig", input='{"n":1}')
    assert gate_with_job(block, None).decide(block) == StartJob('{"n":1}')
    assert gate_with_job(block, None).decide(block, "No.") == SettleUnrun(Outcome("No.", kind="refused"))
    asked = named("dig", input='{"n":9}')
    gate = gate_with_job(asked, None, asks=[ask_for(asked, answer=EDITED)])
    assert gate.decide(asked) == StartJob('{"euros":1}')


def test_a_call_of_a_background_tool_fails_if_nothing_runs_jobs() -> None:
    block = named("dig", input='{"n":1}')
    gate = gate_with_job(block, None)
    gate.toolset.runs_jobs = False
    assert gate.decide(block) == SettleUnrun(Outcome(NO_JOBS, is_error=True))


def test_no_job_starts_before_its_round_is_sealed() -> None:
    block = named("scan")
    assert not gate_with_job(block, None).may_start_early(block)


@pytest.mark.parametrize("refusal", [None, "No."])
def test_the_outcome_of_a_job_is_the_result_of_its_call_whatever_came_since(refusal: str | None) -> None:
    block = named("dig")
    gate = gate_with_job(block, job_of(block, '{"outcome": {"text": "a hole"}}'), started_before=frozenset({block.key}))
    assert gate.decide(block, refusal) == SettleUnrun(Outcome("a hole"), job=RunCall("{}"))


def test_a_job_that_is_not_settled_leaves_its_outcome_unknown() -> None:
    block = named("dig")
    decision = SettleUnrun(Outcome(OUTCOME_UNKNOWN, is_error=True), "unknown", job=RunCall("{}"))
    assert gate_with_job(block, job_of(block)).decide(block, "No.") == decision


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["result", "deny", "expired", "superseded"])
def test_an_answered_ask_settles_its_call_unless_it_is_an_approval(kind: Any) -> None:
    block, answer = named("where"), AskAnswer(kind, "Here.")
    ask = ask_for(block, "client", answer)
    decision = SettleUnrun(outcome_of_answer(ask, answer), from_client=True)
    assert gate_of(block, asks=[ask]).decide(block) == decision


@pytest.mark.parametrize(("edited", "input"), [(None, '{"n":9}'), ('{"n":1}', '{"n":1}')])
def test_an_approved_call_is_run_with_the_input_that_was_approved(edited: str | None, input: str) -> None:
    block, answer = named("pay", input='{"n":9}'), AskAnswer("approve", input=edited)
    assert gate_of(block, asks=[ask_for(block, answer=answer)]).decide(block) == RunCall(input, answer)


def test_a_call_over_its_limit_is_settled_and_one_that_runs_already_is_not() -> None:
    blocks = [named("ring"), named("ring", 1, id="b")]
    assert gate_of(*blocks).decide(blocks[0]) == RunCall("{}")
    assert gate_of(*blocks).decide(blocks[1]) == SettleUnrun(over_limit(blocks[1], 1))
    assert gate_of(*blocks, running={(1, "b"): None}).decide(blocks[1]) == RunCall("{}")


def test_a_call_is_answered_from_an_identical_one_only_where_its_tool_has_a_memo() -> None:
    for name, decision in (("look", SettleUnrun(Outcome("seen", notes={"memo": "a"}))), ("pay", RunCall("{}"))):
        blocks = [named(name), replace(result(), name=name), named(name, 2, 2, "b")]
        assert gate_of(*blocks).decide(blocks[2]) == decision


def test_a_call_with_an_edited_input_is_not_answered_from_the_original_call() -> None:
    blocks = [named("look"), result(), named("look", 2, 2, "b")]
    answer = AskAnswer("approve", input='{"n":5}')
    gate = gate_of(*blocks, asks=[ask_for(blocks[2], answer=answer)])
    assert gate.decide(blocks[2]) == RunCall('{"n":5}', answer)


# --- asks ------------------------------------------------------------------------------------------------------------


def test_client_tools_and_approvals_are_asked_for_at_once_with_their_expiry() -> None:
    blocks = [
        named("where"),
        named("pay", 1, id="b", input='{"n":9}'),
        named("pay", 2, id="c"),
        named("put", 3, id="d"),
    ]
    digest = TOOLSET.tool_digest("pay", [pay.spec])
    approval = replace(ask_for(blocks[1]), expires_at=NOW + timedelta(seconds=60), tool_digest=digest)
    expected = [ask_for(blocks[0], "client"), approval]
    assert gate_of(*blocks).asks(blocks, NOW) == expected


def test_unknown_tools_calls_over_the_limit_and_running_calls_are_not_asked_for() -> None:
    blocks = [named("unheard_of"), named("pay", 1, id="b", input='{"n":9}')]
    assert gate_of(*blocks, running={(1, "b"): None}).asks(blocks, NOW) == []


def test_a_round_for_which_something_was_done_makes_no_more_asks() -> None:
    blocks = [named("put", 0, id="a"), named("where", 1, id="b")]
    assert gate_of(*blocks, result(2)).asks(blocks, NOW) == []
    assert gate_of(*blocks, asks=[ask_for(blocks[1], "client")]).asks(blocks, NOW) == []
    assert gate_of(*blocks, started_before=frozenset({(1, "a")})).asks(blocks, NOW) == []
    later = named("where", 3, 2, "b")
    assert gate_of(*blocks, result(2), later).asks([later], NOW) == [ask_for(later, "client")]


# --- early starts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "early"),
    [
        (named("look"), True),
        (named("put"), False),
        (named("unheard_of"), False),
        (named("where"), False),
        (named("pay", input='{"n":9}'), False),
        (named("pay", input='{"n":1}'), True),
        (call(interrupted=True), False),
        (Block(0, 1, 1, TEXT, "Hi."), False),
    ],
)
def test_only_calls_of_read_only_tools_that_need_nobody_start_early(block: Block, early: bool) -> None:
    assert gate_of(block).may_start_early(block) is early


def test_no_call_starts_early_beyond_the_round_limit() -> None:
    blocks = [named("look"), named("look", 2, 2, "b", '{"n":1}')]
    assert not gate_of(*blocks, limits=Limits(max_rounds=1)).may_start_early(blocks[1])


def test_a_call_whose_outcome_is_known_or_comes_with_an_identical_call_does_not_start_early() -> None:
    blocks = [named("look"), result(), named("look", 2, 2, "b"), named("look", 3, 2, "c", '{"n":1}')]
    again = named("look", 4, 2, "d", '{"n":1}')
    gate = gate_of(*blocks, again)
    assert [gate.may_start_early(block) for block in (*blocks[2:], again)] == [False, True, False]
    assert gate.first_of_same(again, [blocks[3], again]) == blocks[3]
    assert gate.first_of_same(blocks[3], [blocks[3], again]) is None
    assert gate.first_of_same(named("put"), [named("put")]) is None


# --- structured turns ------------------------------------------------------------------------------------------------


def test_roles_are_those_of_output_tools_and_a_text_draft_is_an_output() -> None:
    gate = gate_of(output=OUTPUT)
    draft = as_call(Block(0, 1, 1, TEXT, "{}"))
    roles = [gate.role(named(name)) for name in ("output", "submit", "look", "unheard_of")]
    assert (roles, gate.role(draft)) == (["output", "submit", None, None], "output")


def test_the_submitted_draft_is_the_last_one_before_the_call_that_has_not_failed() -> None:
    first, second = named("output", 0, input="1"), named("output", 2, id="b", input="2")
    submit = named("submit", 4, id="c")
    failed = replace(result(3, id="b", is_error=True), name="output")
    later = named("output", 5, id="d", input="3")
    assert gate_of(first, result(1), second, failed, submit, later, output=OUTPUT).submitted_draft(submit) == "1"
    assert gate_of(first, second, submit, output=OUTPUT).submitted_draft(submit) == "2"
    assert gate_of(submit, first, output=OUTPUT).submitted_draft(replace(submit, index=0)) is None


# --- limits and memo -------------------------------------------------------------------------------------------------

READ_ONLY = {"look"}


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
    text = "This call was not run: look has reached its limit of 2 calls in one turn."
    assert over_limit(call(), 2) == Outcome(text, kind="refused", notes={"calls_per_turn": 2})


def test_the_newest_result_of_an_identical_call_is_remembered_across_rounds() -> None:
    first, second, third = call(0, 1, "a"), call(2, 2, "b"), call(4, 3, "c")
    blocks = [first, result(1, 1, "a"), second, replace(result(3, 2, "b"), text="seen again"), third]
    assert earlier_result(third, blocks, READ_ONLY) == Outcome("seen again", notes={"memo": "b"})
    assert earlier_result(second, blocks, READ_ONLY) == Outcome("seen", notes={"memo": "a"}), "the future is not known"
    assert earlier_result(first, blocks, READ_ONLY) is None


def test_a_repeated_id_refers_to_the_call_of_its_own_round() -> None:
    blocks = [call(0, 1, "a"), result(1, 1, "a"), replace(call(2, 2, "a"), text='{"n":2}'), result(3, 2, "a")]
    blocks[3] = replace(blocks[3], text="another")
    again = call(4, 3, "b")
    assert earlier_result(again, [*blocks, again], READ_ONLY) == Outcome("seen", notes={"memo": "a"})


def test_a_failure_is_not_remembered() -> None:
    again = call(2, 2, "b")
    assert earlier_result(again, [call(), result(is_error=True), again], READ_ONLY) is None
    before = [call(0, 1, "a"), result(1, 1, "a"), call(2, 2, "b"), result(3, 2, "b", is_error=True)]
    third = call(4, 3, "c")
    assert earlier_result(third, [*before, third], READ_ONLY) == Outcome("seen", notes={"memo": "a"})


def test_nothing_from_before_a_call_that_may_have_changed_something_is_remembered() -> None:
    again = call(4, 3, "b")
    blocks = [call(0, 1, "a"), result(1, 1, "a"), write(2, 2), result(3, 2, "w"), again]
    assert earlier_result(again, blocks, READ_ONLY) is None
    assert earlier_result(again, blocks, READ_ONLY | {"write"}) == Outcome("seen", notes={"memo": "a"})
    later = write(5, 3)
    unchanged = [call(0, 1, "a"), result(1, 1, "a"), again, later]
    assert earlier_result(again, unchanged, READ_ONLY) is not None, "a call that comes later changed nothing for it"


def test_a_result_of_an_edited_input_is_not_remembered_for_the_input_of_the_model() -> None:
    edited = replace(result(), notes='{"seconds":0.1,"approval":{"decision":"approve","input":"{\\"n\\":9}"}}')
    allowed = replace(result(), notes='{"approval":{"decision":"approve"}}')
    again = call(2, 2, "b")
    assert earlier_result(again, [call(), edited, again], READ_ONLY) is None
    assert earlier_result(again, [call(), allowed, again], READ_ONLY) == Outcome("seen", notes={"memo": "a"})


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
def test_calls_are_the_same_when_their_inputs_are_equal_as_json(one: str, other: str, same: bool) -> None:
    assert same_call(replace(call(), text=one), replace(call(), text=other)) == same
    assert not same_call(replace(call(), text=one), replace(write(0), text=one))


# --- answers of persons ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (AskAnswer("result", "3 cats"), Outcome("3 cats")),
        (AskAnswer("result"), Outcome("The call succeeded and returned nothing.")),
        (AskAnswer("result", "no graph", is_error=True), Outcome("no graph", is_error=True)),
    ],
)
def test_the_result_of_a_client_tool_is_the_outcome_as_it_came(answer: AskAnswer, outcome: Outcome) -> None:
    assert outcome_of_answer(PAY, answer) == outcome


@pytest.mark.parametrize(
    ("answer", "text", "decision"),
    [
        (AskAnswer("deny"), "The user did not allow this call of pay.", "denied"),
        (
            AskAnswer("deny", "too dear"),
            "The user did not allow this call of pay. The user says: too dear",
            "denied",
        ),
        (AskAnswer("expired"), "This call was not run: nobody answered in time.", "expired"),
        (
            AskAnswer("superseded"),
            "This call was not run: the user said something else instead of answering.",
            "superseded",
        ),
    ],
)
def test_a_call_that_was_not_allowed_is_refused_with_the_reason(answer: AskAnswer, text: str, decision: str) -> None:
    outcome = outcome_of_answer(PAY, answer)
    assert (outcome.text, outcome.kind, outcome.is_error) == (text, "refused", True)
    assert outcome.notes == {"approval": {"decision": decision}}


def test_an_approved_call_is_never_answered_without_a_run() -> None:
    with pytest.raises(AssertionError, match="is run"):
        outcome_of_answer(PAY, AskAnswer("approve"))


def test_an_approval_without_a_change_is_noted_and_not_shown_to_the_model() -> None:
    outcome = Outcome("paid", notes={"seconds": 0.1})
    noted = {"seconds": 0.1, "approval": {"decision": "approve"}}
    assert with_approval(outcome, AskAnswer("approve")) == Outcome("paid", notes=noted)


def test_a_changed_input_is_marked_to_the_model_and_noted() -> None:
    outcome = with_approval(Outcome("paid", is_error=True, notes={"seconds": 0.1}), EDITED)
    assert outcome.text == 'The user changed the input to {"euros":1} before allowing the call.\n\npaid'
    assert outcome.is_error
    assert outcome.notes == {"seconds": 0.1, "approval": {"decision": "approve", "input": '{"euros":1}'}}


def test_the_notice_of_a_changed_input_comes_before_the_result() -> None:
    notice = "The user changed the input to {} before allowing the call."
    assert with_approval(Outcome("", more=(File(b"x"), "so")), replace(EDITED, input="{}")).parts == (
        notice,
        File(b"x"),
        "so",
    )


def test_a_picture_as_a_clients_result_needs_no_text() -> None:
    layout = '{"type":"tool_result","content":[]}'
    assert outcome_of_answer(PAY, AskAnswer("result", layout=layout)) == Outcome("", layout=layout)


# --- grants ----------------------------------------------------------------------------------------------------------


def test_a_grant_answers_the_asks_that_it_covers_and_the_others_are_left() -> None:
    calls = [named("pay", 0, id="a", input='{"n":9}'), named("pay", 1, id="b", input='{"n":9,"note":1}')]
    asks = gate_of(*calls).asks(calls, NOW)
    digest = asks[0].tool_digest
    assert digest is not None
    grant = Grant(uuid4(), "pay", digest, '{"note":{"const":1}}', uuid4(), "x", NOW)
    first, second = with_grants(asks, calls, [grant])
    assert first.answer is None
    assert second.answer == AskAnswer("approve", grant=grant.id)
    assert (first.is_marked, second.is_marked) == (True, False)
    assert gate_of(*calls, asks=[first, second]).decide(calls[1]) == RunCall(calls[1].text, second.answer)


def test_a_call_that_a_grant_allowed_has_its_id_in_the_notes() -> None:
    grant = uuid4()
    outcome = with_approval(Outcome("paid"), AskAnswer("approve", grant=grant))
    assert outcome == Outcome("paid", notes={"approval": {"decision": "remembered", "grant": str(grant)}})


def test_only_an_approval_can_be_remembered() -> None:
    block = named("where")
    (asked,) = gate_of(block).asks([block], NOW)
    assert (asked.kind, asked.tool_digest) == ("client", None)


@pytest.mark.parametrize(
    ("answer", "words", "decision"),
    [
        (AskAnswer("result", '{"action": "decline", "content": null}'), "did not sign in", "denied"),
        (AskAnswer("result", '{"action": "cancel", "content": null}'), "did not sign in", "denied"),
        (AskAnswer("superseded"), "said something else", "superseded"),
        (AskAnswer("expired"), "Nobody signed in", "expired"),
    ],
)
def test_a_call_without_its_sign_in_is_not_run(answer: AskAnswer, words: str, decision: str) -> None:
    block = named("look", id="a")
    settled = gate_of(block, asks=[replace(sign_in(), answer=answer)]).decide(block)
    assert isinstance(settled, SettleUnrun)
    assert words in settled.outcome.text
    assert (settled.outcome.kind, settled.outcome.notes) == ("refused", {"sign_in": {"decision": decision}})


def test_the_last_sign_in_of_a_call_decides_about_it() -> None:
    block = named("look", id="a")
    declined = replace(sign_in(), answer=AskAnswer("result", '{"action": "decline", "content": null}'))
    done = replace(sign_in(attempt=2), answer=AskAnswer("result", to_json(SIGNED_IN)))
    assert isinstance(gate_of(block, asks=[declined, done]).decide(block), RunCall)


def test_a_question_of_a_tool_that_runs_already_keeps_no_call_of_the_round_from_being_asked_about() -> None:
    calls = [named("look", 0, id="a"), named("pay", 1, id="b", input='{"n":9}')]
    question = Ask(1, "a#1.1", "look", "elicitation", "0" * 64, 1, question="{}")
    assert [ask.tool_use_id for ask in gate_of(*calls, asks=[question]).asks(calls, NOW)] == ["b"]

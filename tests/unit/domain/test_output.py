"""The progress of a structured turn, as derived from its rows."""

import json
from dataclasses import replace

import pytest

from tests.support.turns import call, result, sealed, text, turn_of
from turnstream.domain.blocks import ACCEPTED, CUT_SHORT, REJECTED, Block
from turnstream.domain.kinds import USER_TEXT, VERDICT
from turnstream.domain.output import (
    OutputProgress,
    attempt_of,
    failure_of,
    is_of_an_object,
    output_of,
    output_progress,
    phase_of,
    schema_for_model,
    unjudged_draft,
)
from turnstream.domain.steps import CallModel, Fail, Finish, JudgeOutput, next_step
from turnstream.domain.turns import OutputSpec, ToolRole, ToolSpec, Turn, TurnRequest

PLAIN = OutputSpec("{}")
REFLECTED = OutputSpec("{}", handler="critic")
ROLES: tuple[ToolRole, ...] = ("output", "submit")


def structured(spec: OutputSpec, *blocks: Block, rounds: int, stop_reason: str = "tool_use") -> Turn:
    turn = turn_of(*blocks, rounds=[sealed(n + 1, stop_reason) for n in range(rounds)])
    tools = tuple(ToolSpec(role, "", "{}", role=role) for role in ROLES)
    assert turn.request is not None
    return replace(turn, request=replace(turn.request, tools=tools, output=spec))


def made(name: str, id: str, round: int = 1, *, fails: bool = False) -> list[Block]:
    """Returns a call of a tool, and the result of the call."""
    asked = replace(call(id=id, round=round), name=name, text=f'"{id}"')
    return [asked, replace(result(id=id, round=round), name=name, is_error=fails)]


def numbered(*blocks: Block) -> list[Block]:
    return [replace(block, index=index) for index, block in enumerate(blocks)]


def test_the_first_call_is_made_whatever_is_wanted() -> None:
    assert next_step(structured(PLAIN, rounds=0)) == CallModel(1)


def test_an_output_that_is_right_ends_the_turn() -> None:
    turn = structured(PLAIN, *numbered(*made("output", "a")), rounds=1)
    assert next_step(turn) == Finish("output")
    assert output_of(turn) is None
    assert output_of(replace(turn, status="complete", stop_reason="output")) == '"a"'


def test_a_wrong_output_ends_an_attempt() -> None:
    turn = structured(PLAIN, *numbered(*made("output", "a", fails=True)), rounds=1)
    assert output_progress(turn) == OutputProgress(failure="max_attempts", failed=1, spent=1, complaint="seen")
    assert next_step(turn) == CallModel(2)
    once = structured(replace(PLAIN, max_attempts=1), *turn.blocks, rounds=1)
    step = next_step(once)
    assert isinstance(step, Fail)
    assert step.type == "max_attempts"
    assert step.details == {
        "attempt": 1,
        "iterations": 1,
        "max_attempts": 1,
        "max_iterations": 15,
        "complaint": "seen",
    }
    assert step.message.endswith("(attempt 1 of 1, model call 1 of 15 in it); the last complaint: seen")


def test_the_attempt_that_used_up_its_model_calls_is_the_one_that_failed_and_an_earlier_complaint_is_the_last() -> None:
    spec = replace(PLAIN, max_iterations=2)
    blocks = numbered(*made("output", "a", fails=True), *made("look", "b", 2), *made("look", "c", 3))
    step = next_step(structured(spec, *blocks, rounds=3))
    assert isinstance(step, Fail)
    assert step.type == "max_iterations"
    assert step.details is not None
    assert {**step.details, "max_iterations": 0} == {
        "attempt": 2,
        "iterations": 2,
        "max_attempts": 3,
        "max_iterations": 0,
        "complaint": "seen",
    }


def test_two_wrong_outputs_of_one_reply_are_two_attempts() -> None:
    blocks = numbered(*made("output", "a", fails=True), *made("output", "b", fails=True))
    progress = output_progress(structured(PLAIN, *blocks, rounds=1))
    assert (progress.failed, progress.spent, progress.iterations) == (2, 1, 0)


def test_the_attempt_of_the_last_round_is_counted_from_the_rounds_before_it() -> None:
    blocks = numbered(*made("output", "a", fails=True), *made("output", "b", 2, fails=True))
    assert attempt_of(structured(PLAIN, *blocks[:2], rounds=1)) == 1
    assert attempt_of(structured(PLAIN, *blocks, rounds=2)) == 2


# --- schemas whose root is not an object ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "of_an_object"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"type": "array", "items": {}}, False),
        ({"type": ["object", "null"]}, False),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, False),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, False),
        ({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object"}}}, False),
        ({"enum": ["yes", "no"]}, False),
        ({}, False),
    ],
)
def test_a_schema_is_of_an_object_where_providers_take_it_as_that_of_a_tool(
    schema: dict[str, object], of_an_object: bool
) -> None:
    assert is_of_an_object(schema) is of_an_object


def test_any_other_schema_is_wrapped_with_its_definitions_at_the_root_and_its_references_moved() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#"}, {"$ref": "#/items/anyOf/0"}]},
        "default": [{"$ref": "#"}],
        "$defs": {"leaf": {"type": "string"}},
    }
    assert schema_for_model(OutputSpec(json.dumps(schema))) == json.dumps(schema)
    assert json.loads(schema_for_model(OutputSpec(json.dumps(schema), wrapped=True))) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"leaf": {"type": "string"}},
        "type": "object",
        "properties": {
            "value": {
                "type": "array",
                "items": {
                    "anyOf": [
                        {"$ref": "#/$defs/leaf"},
                        {"$ref": "#/properties/value"},
                        {"$ref": "#/properties/value/items/anyOf/0"},
                    ]
                },
                "default": [{"$ref": "#"}],
            }
        },
        "required": ["value"],
        "additionalProperties": False,
    }


def test_the_output_of_a_wrapped_schema_is_its_value() -> None:
    blocks = numbered(*made("output", "a"))
    turn = structured(OutputSpec('{"type":"array"}', wrapped=True), *blocks, rounds=1)
    ended = replace(turn, stop_reason="output", blocks=(replace(blocks[0], text='{"value": ["é", 1]}'), blocks[1]))
    assert output_of(ended) == '["é", 1]'


def test_the_last_output_of_a_reply_counts() -> None:
    blocks = numbered(*made("output", "a"), *made("output", "b"))
    assert output_progress(structured(PLAIN, *blocks, rounds=1)).accepted == blocks[2]


def test_other_tools_are_iterations() -> None:
    turn = structured(replace(PLAIN, max_iterations=1), *numbered(*made("look", "a")), rounds=1)
    assert output_progress(turn) == OutputProgress(iterations=1)
    step = next_step(turn)
    assert isinstance(step, Fail)
    assert step.type == "max_iterations"
    assert "complaint" not in (step.details or {})


@pytest.mark.parametrize(("stop_reason", "failed"), [("end_turn", 1), ("pause_turn", 0), ("interrupted", 0)])
def test_a_whole_reply_without_a_call_fails_its_attempt(stop_reason: str, failed: int) -> None:
    turn = structured(PLAIN, text(), rounds=1, stop_reason=stop_reason)
    assert output_progress(turn).failed == failed


def test_drafts_are_submitted_or_forgotten() -> None:
    drafted = made("output", "a")
    refused = made("output", "b", fails=True)
    assert output_progress(structured(REFLECTED, *numbered(*drafted, *refused), rounds=1)).drafted is not None
    submitted = numbered(*drafted, *made("submit", "s"))
    assert output_progress(structured(REFLECTED, *submitted, rounds=1)).accepted == submitted[0]
    judged = numbered(*drafted, *made("submit", "s", fails=True))
    assert output_progress(structured(REFLECTED, *judged, rounds=1)) == OutputProgress(
        failure="max_attempts", failed=1, spent=1, complaint="seen"
    )


def test_nothing_to_submit_is_the_end() -> None:
    standing = output_progress(structured(REFLECTED, *numbered(*made("submit", "s", fails=True)), rounds=1))
    failure = failure_of(standing, REFLECTED)
    assert failure is not None
    assert failure.type == "submit_before_output"
    assert failure.details == {"attempt": 1, "iterations": 1, "max_attempts": 3, "max_iterations": 15}


def test_a_turn_that_is_not_structured_has_no_output() -> None:
    assert output_of(turn_of(rounds=[sealed(1, "output")])) is None
    assert output_of(replace(turn_of(), request=None)) is None


def test_a_round_that_is_not_sealed_says_nothing() -> None:
    turn = structured(PLAIN, rounds=1)
    assert isinstance(turn.request, TurnRequest)
    assert output_progress(replace(turn, rounds=(replace(turn.rounds[0], sealed_by=None),))) == OutputProgress()
    assert output_of(replace(turn, stop_reason="output")) is None


# --- outputs that the model writes as text --------------------------------------------------------------------------

NATIVE = replace(PLAIN, native=True)


def judged(round: int = 1, data: str = ACCEPTED) -> Block:
    return Block(0, round, 1, VERDICT, "Said.", data)


def test_an_output_that_is_text_is_judged_first() -> None:
    turn = structured(NATIVE, text(content=" "), text(1, content='"a"'), text(2, content=""), rounds=1, stop_reason="x")
    assert next_step(turn) == JudgeOutput(turn.blocks[1])
    assert output_progress(turn) == OutputProgress(iterations=1)
    taken = replace(turn, blocks=(*turn.blocks, judged()))
    assert next_step(taken) == Finish("output")
    assert output_of(replace(taken, stop_reason="output")) == '"a"'
    wrong = replace(turn, blocks=(*turn.blocks, judged(data=REJECTED)))
    assert output_progress(wrong) == OutputProgress(failure="max_attempts", failed=1, spent=1, complaint="Said.")
    assert next_step(wrong) == CallModel(2)


def test_a_steer_voids_an_output() -> None:
    words = replace(text(3), type=USER_TEXT)
    turn = structured(NATIVE, text(content='"a"'), judged(), words, rounds=1, stop_reason="end_turn")
    assert next_step(turn) == CallModel(2)
    assert output_progress(turn).accepted is None
    unjudged = structured(NATIVE, text(content='"a"'), words, rounds=1, stop_reason="end_turn")
    assert next_step(unjudged) == CallModel(2)


@pytest.mark.parametrize("spec", [PLAIN, NATIVE])
@pytest.mark.parametrize("stop_reason", ["refusal", "max_tokens", "model_context_window_exceeded"])
def test_a_reply_that_was_cut_off_ends_the_turn_by_its_name(spec: OutputSpec, stop_reason: str) -> None:
    step = next_step(structured(spec, text(), rounds=1, stop_reason=stop_reason))
    assert isinstance(step, Fail)
    assert step.type == stop_reason


def test_calls_that_came_whole_before_a_reply_was_cut_off_count() -> None:
    turn = structured(PLAIN, *numbered(*made("output", "a")), rounds=1, stop_reason="max_tokens")
    assert next_step(turn) == Finish("output")
    refused = structured(PLAIN, *numbered(*made("look", "a", fails=True)), rounds=1, stop_reason="refusal")
    assert isinstance(next_step(refused), Fail)


@pytest.mark.parametrize("stop_reason", ["pause_turn", "interrupted", "cancelled", "error", "compacted"])
def test_an_incomplete_reply_is_no_output(stop_reason: str) -> None:
    turn = structured(NATIVE, text(), rounds=1, stop_reason=stop_reason)
    assert unjudged_draft(turn) is None
    assert output_progress(turn).failed == 0


def test_a_summary_is_none_of_the_calls_of_an_attempt() -> None:
    assert output_progress(structured(NATIVE, text(), rounds=1, stop_reason="compacted")) == OutputProgress()


def test_text_beside_calls_is_no_output() -> None:
    turn = structured(NATIVE, *numbered(text(), *made("look", "a")), rounds=1)
    assert unjudged_draft(turn) is None


def test_other_turns_put_nothing_out() -> None:
    assert unjudged_draft(turn_of(text(), rounds=[sealed(1, "end_turn")])) is None
    assert unjudged_draft(replace(turn_of(), request=None)) is None
    assert unjudged_draft(structured(NATIVE, rounds=0)) is None
    assert phase_of(replace(turn_of(), status="cancelled")) is None


# --- phases ----------------------------------------------------------------------------------------------------------


def cut_short(name: str, id: str) -> list[Block]:
    asked, said = made(name, id, fails=True)
    return [asked, replace(said, text=CUT_SHORT.format("cancelled"))]


def cancelled(spec: OutputSpec, *blocks: Block, rounds: int = 1, stop_reason: str = "tool_use") -> Turn:
    turn = structured(spec, *numbered(*blocks), rounds=rounds, stop_reason=stop_reason)
    return replace(turn, status="cancelled", stop_reason="cancelled")


@pytest.mark.parametrize(
    ("turn", "phase"),
    [
        (cancelled(PLAIN, rounds=0), "building"),
        (cancelled(PLAIN, *made("output", "a", fails=True)), "building"),
        (cancelled(PLAIN, text(), stop_reason="cancelled"), "iterating"),
        (cancelled(PLAIN, *cut_short("output", "a"), stop_reason="cancelled"), "iterating"),
        (cancelled(PLAIN, *cut_short("look", "a")), "iterating"),
        (cancelled(PLAIN, *cut_short("look", "a"), *cut_short("output", "b")), "validating"),
        (cancelled(NATIVE, text(content='"a"'), stop_reason="end_turn"), "validating"),
        (cancelled(REFLECTED, *made("output", "a"), *cut_short("submit", "b")), "validating"),
        (cancelled(REFLECTED, *cut_short("output", "a")), "reflecting"),
        (cancelled(REFLECTED, *made("output", "a")), "reflecting"),
    ],
)
def test_a_cancelled_turn_keeps_its_last_activity(turn: Turn, phase: str) -> None:
    assert phase_of(turn) == phase
    assert phase_of(replace(turn, status="complete")) is None

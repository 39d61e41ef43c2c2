"""Computes the progress of a structured turn's attempts at an output, from rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from turnstream.domain.blocks import CUT_SHORT, REJECTED, Block
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import STEERED, TEXT, TOOL_RESULT, VERDICT
from turnstream.domain.rounds import Round
from turnstream.domain.turns import OutputSpec, ToolRole, ToolSpec, Turn, TurnError

Failure = Literal[
    "max_attempts",
    "max_iterations",
    "invalid_response",
    "submit_before_output",
    "refusal",
    "max_tokens",
    "model_context_window_exceeded",
]
Phase = Literal["building", "iterating", "validating", "reflecting"]

VALUE = "value"  # the member that contains the output, if the output's schema does not describe a plain object

_CANCELLED = "cancelled"
_MOST_OF_A_COMPLAINT = 2000  # characters
# Members of a schema that stay at the root, because references point to the root.
_OF_THE_ROOT = ("$schema", "$defs", "definitions")
# Members of a schema whose values are not schemas.
_LITERALS = frozenset({"const", "default", "enum", "examples"})
_UNIONS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not"})
_NO_REPLY = frozenset({"pause_turn", "compaction", "interrupted", _CANCELLED, "error"})
_WHY: dict[Failure, str] = {
    "max_attempts": "no output was valid, in as many attempts as there may be",
    "max_iterations": "there was no output after as many model calls as one attempt may have",
    "invalid_response": "the model answered without an output",
    "submit_before_output": "the model submitted before there was an output",
    "refusal": "the model refused to answer",
    "max_tokens": "the reply was cut off at the tokens that it may have, before there was an output",
    "model_context_window_exceeded": "the reply was cut off at the model's context window, before there was an output",
}
# Stop reasons after which another attempt would fail in the same way.
_CUT_OFF: dict[str | None, Failure] = {
    "refusal": "refusal",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "model_context_window_exceeded",
}
_AT_ONCE = frozenset({"submit_before_output", *_CUT_OFF})
_GIVE = "Give the final output. Call this once you have all that you need; it ends your work."
_DRAFT = "Give a draft of the output. You are told what becomes of it, and may call this again with a better one."
_SUBMIT = "Submit your last draft as the final output. Call this when you are satisfied with it; it ends your work."
_NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """The state of a structured turn. `accepted` is the call or text block that contains the accepted output, `drafted`
    the call that contains the latest draft. `failed` counts failed attempts, `spent` the model calls of the last failed
    attempt, `iterations` those of the present attempt. `failure` is the latest reason of a failure, `complaint` the
    latest complaint about an output.
    """

    accepted: Block | None = None
    drafted: Block | None = None
    failure: Failure | None = None
    failed: int = 0
    spent: int = 0
    iterations: int = 0
    complaint: str | None = None


def output_progress(turn: Turn) -> OutputProgress:
    """Returns the progress of a structured turn in which every call has a result. A message of the user revokes an
    accepted output, because the model must answer that message too.
    """
    now = OutputProgress()
    for round in turn.rounds:
        if round.sealed and round.stop_reason != COMPACTED:
            now = _after_round(replace(now, iterations=now.iterations + 1), turn, round)
            if _of_round(turn, round, *STEERED):
                now = replace(now, accepted=None, failure=None)
    return now


def failure_of(progress: OutputProgress, spec: OutputSpec) -> TurnError | None:
    """Returns the error with which the turn must fail, or None while the turn may continue."""
    failure: Failure | None = progress.failure
    attempt, iterations = progress.failed + 1, progress.iterations
    if failure not in _AT_ONCE and progress.failed >= spec.max_attempts:
        attempt, iterations = progress.failed, progress.spent
    elif failure not in _AT_ONCE:
        failure = "max_iterations" if progress.iterations >= spec.max_iterations else None
    if failure is None:
        return None
    limits = {"max_attempts": spec.max_attempts, "max_iterations": spec.max_iterations}
    details: dict[str, Any] = {"attempt": attempt, "iterations": iterations, **limits}
    calls = f"model call {iterations} of {spec.max_iterations}"
    message = f"{_WHY[failure]} (attempt {attempt} of {spec.max_attempts}, {calls} in it)"
    if progress.complaint is not None:
        details["complaint"] = progress.complaint[:_MOST_OF_A_COMPLAINT]
        message += f"; the last complaint: {details['complaint']}"
    return TurnError(failure, message, details=details)


def attempt_of(turn: Turn) -> int:
    """Returns the number, from 1, of the attempt to which the calls of the last round belong."""
    return output_progress(replace(turn, rounds=turn.rounds[:-1])).failed + 1


def output_of(turn: Turn) -> str | None:
    """Returns the output of a structured turn as JSON text, without a wrapping object. None if there is no output."""
    if turn.request is None or turn.request.output is None or turn.stop_reason != "output":
        return None
    accepted = output_progress(turn).accepted
    if accepted is None or not turn.request.output.wrapped:
        return None if accepted is None else accepted.text
    return json.dumps(json.loads(accepted.text)[VALUE], ensure_ascii=False)


def is_of_an_object(schema: Mapping[str, Any]) -> bool:
    """Returns whether providers accept `schema` for a tool: an object, without a union or a reference at its root."""
    return schema.get("type") == "object" and not _UNIONS & schema.keys()


def schema_for_model(spec: OutputSpec) -> str:
    """Returns the schema for the model as JSON text: the output's schema, or that of an object around the output."""
    if not spec.wrapped:
        return spec.schema
    inner = _with_moved_references(json.loads(spec.schema))
    root = {name: inner.pop(name) for name in _OF_THE_ROOT if name in inner}
    members = {"properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    return json.dumps({**root, "type": "object", **members}, ensure_ascii=False)


def output_tools(spec: OutputSpec) -> tuple[ToolSpec, ...]:
    """Returns the tools with which a model gives its output; empty if the provider enforces the schema."""
    if spec.native:
        return ()
    if spec.handler is None:
        description = spec.description or _GIVE
        return (ToolSpec(spec.name, description, schema_for_model(spec), retry_safe=True, role="output"),)
    draft, submit = spec.description or _DRAFT, spec.submit_description or _SUBMIT
    return (
        ToolSpec(spec.name, draft, schema_for_model(spec), retry_safe=True, role="output"),
        ToolSpec(spec.submit_name, submit, _NO_ARGUMENTS, retry_safe=True, role="submit"),
    )


def _with_moved_references(schema: Any) -> Any:
    """Rewrites references for a schema that becomes a member of another schema. Definitions stay at the root."""
    if isinstance(schema, list):
        return [_with_moved_references(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: each if name in _LITERALS else _with_moved_references(each) for name, each in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#") and not target.startswith(("#/$defs/", "#/definitions/")):
        moved["$ref"] = f"#/properties/{VALUE}{target[1:]}"
    return moved


def unjudged_draft(turn: Turn) -> Block | None:
    """Returns the latest output that the model wrote as text, if this output has no verdict yet."""
    if turn.request is None or turn.request.output is None:
        return None
    sealed = [round for round in turn.rounds if round.sealed]
    if not sealed or _of_round(turn, sealed[-1], VERDICT, *STEERED):
        return None
    return _draft_of(turn, sealed[-1])


def phase_of(turn: Turn) -> Phase | None:
    """Returns the phase in which a structured turn was cancelled, or None for every other turn."""
    if turn.request is None or turn.request.output is None or turn.status != _CANCELLED:
        return None
    progress = output_progress(turn)
    if unjudged_draft(turn) is not None:
        return "validating"
    role = _role_cut_short(turn)
    if role == "submit" or (role == "output" and turn.request.output.handler is None):
        return "validating"
    if role == "output" or progress.drafted is not None:
        return "reflecting"
    return "iterating" if progress.iterations else "building"


def _role_cut_short(turn: Turn) -> ToolRole | None:
    """Returns the role of the last output tool that ran when the turn was cancelled; None if the reply was cut off."""
    last = next((round for round in reversed(turn.rounds) if round.sealed), None)
    if last is None or last.stop_reason == _CANCELLED:
        return None
    roles = [_role_of(turn, call) for call, result in _calls_of(turn, last) if _was_cut_short(result)]
    return next((role for role in reversed(roles) if role is not None), None)


# --- rounds ----------------------------------------------------------------------------------------------------------


def _after_round(now: OutputProgress, turn: Turn, round: Round) -> OutputProgress:
    spec, calls = _spec_of(turn), _calls_of(turn, round)
    cut_off = _CUT_OFF.get(round.stop_reason)
    if cut_off is not None and (cut_off == "refusal" or not calls):
        return replace(now, failure=cut_off)
    if draft := _draft_of(turn, round):
        if not (verdicts := _of_round(turn, round, VERDICT)):
            return now
        rejected = verdicts[-1].data == REJECTED
        return _failed(now, "max_attempts", verdicts[-1].text) if rejected else replace(now, accepted=draft)
    if not calls and round.stop_reason not in _NO_REPLY:
        return _failed(now, "invalid_response")
    for call, result in calls:
        now = _after_call(now, call, result, _role_of(turn, call), spec)
    return now


def _after_call(
    now: OutputProgress, call: Block, result: Block | None, role: ToolRole | None, spec: OutputSpec
) -> OutputProgress:
    fine = result is not None and not result.is_error
    complaint = None if result is None else result.text
    if _was_cut_short(result):
        return now
    match role:
        case "output" if spec.handler is not None:
            return replace(now, drafted=call) if fine else now
        case "output":
            return replace(now, accepted=call) if fine else _failed(now, "max_attempts", complaint)
        case "submit" if now.drafted is None:
            return replace(now, failure="submit_before_output")
        case "submit":
            return replace(now, accepted=now.drafted) if fine else _failed(now, "max_attempts", complaint)
        case _:
            return now


def _failed(now: OutputProgress, failure: Failure, complaint: str | None = None) -> OutputProgress:
    # A second wrong output in one reply fails another attempt, which had no model call of its own.
    spent, complaint = now.iterations or now.spent, complaint or now.complaint
    return OutputProgress(failed=now.failed + 1, failure=failure, spent=spent, complaint=complaint)


def _draft_of(turn: Turn, round: Round) -> Block | None:
    """Returns the last text block of a complete reply, if the model writes the output as text."""
    if not _spec_of(turn).native or round.stop_reason in _NO_REPLY or round.stop_reason in _CUT_OFF:
        return None
    if round.stop_reason == COMPACTED or _calls_of(turn, round):
        return None
    return next((block for block in reversed(_of_round(turn, round, TEXT)) if block.text.strip()), None)


def _calls_of(turn: Turn, round: Round) -> list[tuple[Block, Block | None]]:
    """Returns the calls of a round in order, each with its result, if any."""
    mine = [block for block in turn.blocks if block.round == round.number]
    results = {block.tool_use_id: block for block in mine if block.type == TOOL_RESULT}
    return [(block, results.get(block.tool_use_id)) for block in mine if block.is_call]


def _of_round(turn: Turn, round: Round, *types: str) -> list[Block]:
    return [block for block in turn.blocks if block.round == round.number and block.type in types]


def _was_cut_short(result: Block | None) -> bool:
    return result is not None and result.is_error and result.text == CUT_SHORT.format(_CANCELLED)


def _role_of(turn: Turn, call: Block) -> ToolRole | None:
    assert turn.request is not None
    return next((spec.role for spec in turn.request.tools if spec.name == call.name), None)


def _spec_of(turn: Turn) -> OutputSpec:
    assert turn.request is not None
    assert turn.request.output is not None
    return turn.request.output

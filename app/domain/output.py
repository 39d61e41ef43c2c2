"""Structured turns: the progress of the attempts at an output, read from rows."""

from dataclasses import dataclass, replace
from typing import Literal

from app.domain.blocks import CUT_SHORT, REJECTED, Block
from app.domain.history import COMPACTED
from app.domain.kinds import TEXT, TOOL_RESULT, USER_TEXT, VERDICT
from app.domain.rounds import Round
from app.domain.turns import OutputSpec, ToolRole, Turn

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

_CANCELLED = "cancelled"
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
# Stop reasons that would be the same in another attempt.
_CUT_OFF: dict[str | None, Failure] = {
    "refusal": "refusal",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "model_context_window_exceeded",
}
_AT_ONCE = frozenset({"submit_before_output", *_CUT_OFF})


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """The state of a structured turn. `accepted` is the call whose input is the output, or the text block that is.
    `drafted` is the call that would be submitted. `failed` attempts have ended, the last one by `failure`; the present
    one has had `iterations` model calls.
    """

    accepted: Block | None = None
    drafted: Block | None = None
    failure: Failure | None = None
    failed: int = 0
    iterations: int = 0


def output_progress(turn: Turn) -> OutputProgress:
    """The progress of a structured turn all of whose calls have results. A message of the user takes an output back:
    the model has to answer that message too.
    """
    now = OutputProgress()
    for round in turn.rounds:
        if round.sealed and round.stop_reason != COMPACTED:
            now = _after_round(replace(now, iterations=now.iterations + 1), turn, round)
            if _of_round(turn, round, USER_TEXT):
                now = replace(now, accepted=None, failure=None)
    return now


def failure_of(progress: OutputProgress, spec: OutputSpec) -> tuple[Failure, str] | None:
    """The failure of the turn and its message; None while the turn may go on."""
    failure: Failure | None = None
    if progress.failure in _AT_ONCE or progress.failed >= spec.max_attempts:
        failure = progress.failure
    elif progress.iterations >= spec.max_iterations:
        failure = "max_iterations"
    return None if failure is None else (failure, _WHY[failure])


def output_of(turn: Turn) -> str | None:
    """The output of a structured turn, JSON text as the model wrote it; None while there is none."""
    if turn.request is None or turn.request.output is None or turn.stop_reason != "output":
        return None
    accepted = output_progress(turn).accepted
    return None if accepted is None else accepted.text


def unjudged_draft(turn: Turn) -> Block | None:
    """The output that the model has just written as text, while it has no verdict."""
    if turn.request is None or turn.request.output is None:
        return None
    sealed = [round for round in turn.rounds if round.sealed]
    if not sealed or _of_round(turn, sealed[-1], VERDICT) or _of_round(turn, sealed[-1], USER_TEXT):
        return None
    return _draft_of(turn, sealed[-1])


def phase_of(turn: Turn) -> Phase | None:
    """The phase of a structured turn when it was cancelled."""
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
    """The role of the last output tool that ran when the turn ended. None where the reply itself was cut off."""
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
        return _failed(now, "max_attempts") if verdicts[-1].data == REJECTED else replace(now, accepted=draft)
    if not calls and round.stop_reason not in _NO_REPLY:
        return _failed(now, "invalid_response")
    for call, result in calls:
        now = _after_call(now, call, result, _role_of(turn, call), spec)
    return now


def _after_call(
    now: OutputProgress, call: Block, result: Block | None, role: ToolRole | None, spec: OutputSpec
) -> OutputProgress:
    fine = result is not None and not result.is_error
    if _was_cut_short(result):
        return now
    match role:
        case "output" if spec.handler is not None:
            return replace(now, drafted=call) if fine else now
        case "output":
            return replace(now, accepted=call) if fine else _failed(now, "max_attempts")
        case "submit" if now.drafted is None:
            return replace(now, failure="submit_before_output")
        case "submit":
            return replace(now, accepted=now.drafted) if fine else _failed(now, "max_attempts")
        case _:
            return now


def _failed(now: OutputProgress, failure: Failure) -> OutputProgress:
    return OutputProgress(failed=now.failed + 1, failure=failure)


def _draft_of(turn: Turn, round: Round) -> Block | None:
    """The text block of a complete reply that is an output written as text."""
    if not _spec_of(turn).native or round.stop_reason in _NO_REPLY or round.stop_reason in _CUT_OFF:
        return None
    if round.stop_reason == COMPACTED or _calls_of(turn, round):
        return None
    return next((block for block in reversed(_of_round(turn, round, TEXT)) if block.text.strip()), None)


def _calls_of(turn: Turn, round: Round) -> list[tuple[Block, Block | None]]:
    """The calls of a round in order, each with its result."""
    mine = [block for block in turn.blocks if block.round == round.number]
    results = {block.tool_use_id: block for block in mine if block.type == TOOL_RESULT}
    return [(block, results.get(block.tool_use_id)) for block in mine if block.is_call]


def _of_round(turn: Turn, round: Round, type: str) -> list[Block]:
    return [block for block in turn.blocks if block.round == round.number and block.type == type]


def _was_cut_short(result: Block | None) -> bool:
    return result is not None and result.is_error and result.text == CUT_SHORT.format(_CANCELLED)


def _role_of(turn: Turn, call: Block) -> ToolRole | None:
    assert turn.request is not None
    return next((spec.role for spec in turn.request.tools if spec.name == call.name), None)


def _spec_of(turn: Turn) -> OutputSpec:
    assert turn.request is not None
    assert turn.request.output is not None
    return turn.request.output

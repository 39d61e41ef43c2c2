"""Structured turns: what the rows say of the attempts at an output."""

from dataclasses import dataclass, replace
from typing import Literal

from app.domain.blocks import TOOL_RESULT, Block
from app.domain.history import COMPACTED
from app.domain.turns import OutputSpec, ToolRole, Turn

Failure = Literal["max_attempts", "max_iterations", "invalid_response", "submit_before_output"]

_GOES_ON = frozenset({"pause_turn", "interrupted", COMPACTED})
_WHY: dict[Failure, str] = {
    "max_attempts": "no output was valid, in as many attempts as there may be",
    "max_iterations": "there was no output after as many model calls as one attempt may have",
    "invalid_response": "the model answered without calling a tool",
    "submit_before_output": "the model submitted before there was an output",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """`accepted` is the call whose input is the turn's output; `drafted` the one that would be submitted. `failed`
    attempts are over, the last one by `failure`; the present one has had `iterations` model calls.
    """

    accepted: Block | None = None
    drafted: Block | None = None
    failure: Failure | None = None
    failed: int = 0
    iterations: int = 0


def standing_of(turn: Turn) -> Standing:
    """Where a structured turn stands, all of whose calls have their results."""
    now = Standing()
    for round in turn.rounds:
        if round.sealed:
            calls = _calls_of(turn, round.number)
            now = replace(now, iterations=now.iterations + 1)
            if not calls and round.stop_reason not in _GOES_ON:
                now = _failed(now, "invalid_response")
            for call, result in calls:
                now = _after_call(now, call, result, _role_of(turn, call), _spec_of(turn))
    return now


def failure_of(standing: Standing, spec: OutputSpec) -> tuple[Failure, str] | None:
    """How the turn has failed, and why in words; None while it may go on."""
    failure: Failure | None = None
    if standing.failure == "submit_before_output" or standing.failed >= spec.max_attempts:
        failure = standing.failure
    elif standing.iterations >= spec.max_iterations:
        failure = "max_iterations"
    return None if failure is None else (failure, _WHY[failure])


def output_of(turn: Turn) -> str | None:
    """The output of a structured turn as the model wrote it, JSON text; None while there is none."""
    if turn.request is None or turn.request.output is None or turn.stop_reason != "output":
        return None
    accepted = standing_of(turn).accepted
    return None if accepted is None else accepted.text


def _after_call(now: Standing, call: Block, result: Block | None, role: ToolRole | None, spec: OutputSpec) -> Standing:
    fine = result is not None and not result.is_error
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


def _failed(now: Standing, failure: Failure) -> Standing:
    return Standing(failed=now.failed + 1, failure=failure)


def _calls_of(turn: Turn, number: int) -> list[tuple[Block, Block | None]]:
    """The calls of a round in order, each with its result."""
    mine = [block for block in turn.blocks if block.round == number]
    results = {block.tool_use_id: block for block in mine if block.type == TOOL_RESULT}
    return [(block, results.get(block.tool_use_id)) for block in mine if block.is_call]


def _role_of(turn: Turn, call: Block) -> ToolRole | None:
    assert turn.request is not None
    return next((spec.role for spec in turn.request.tools if spec.name == call.name), None)


def _spec_of(turn: Turn) -> OutputSpec:
    assert turn.request is not None
    assert turn.request.output is not None
    return turn.request.output

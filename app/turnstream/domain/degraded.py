"""Finds the policies (retry, fallback, …) that acted on a degraded turn, from the turn's rows."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from turnstream.domain.assembly import ASSEMBLED, HANDOFF
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.limits import reached_limits
from turnstream.domain.steps import INTERRUPTED, VOIDED, tools_have_failed
from turnstream.domain.turns import Turn

FALLBACK_MODEL = "fallback_model"
ASSEMBLED_ANSWER = "assembled_answer"
ALL_TOOLS_FAILED = "all_tools_failed"
HOOK_FAILURES = "hook_failures"
REWRITTEN = "rewritten"  # readers have seen a part of the answer that was deleted later
CONTINUED = "continued"  # a reply was interrupted, and its text was kept
_LOOKED_AT = frozenset({TOOL_USE, TOOL_RESULT, USER_TEXT})  # the types of blocks from which `degraded` finds policies
# Names of notes on tool results. No policy writes these notes.
_NOT_DEGRADED = frozenset({"started_at", "seconds", "summarised", "cached", "memo", "approval", "job", HANDOFF})


@dataclass(frozen=True, slots=True)
class Degraded:
    """A policy or a limit, named by `what`, that acted on the tool_result at `index` or, without an `index`, on the
    whole turn. For an interrupted reply, `round` is its round, and `output_tokens` is its output, which is `estimated`
    if the provider did not report the tokens. For a reached limit, `limit` is its value, and `used` is the used amount.
    """

    what: str
    index: int | None = None
    tool: str | None = None
    round: int | None = None
    output_tokens: int | None = None
    estimated: bool = False
    limit: float | None = None
    used: float | None = None


def degraded(turn: Turn) -> tuple[Degraded, ...]:
    """Returns the policies that acted on the turn. Policies that acted on tool results come first."""
    found: list[Degraded] = []
    # The code below needs no other blocks, and a turn may have thousands.
    turn = replace(turn, blocks=tuple(block for block in turn.blocks if block.type in _LOOKED_AT))
    for block in turn.blocks:
        if block.type == TOOL_RESULT and block.notes is not None:
            names = [name for name in json.loads(block.notes) if name not in _NOT_DEGRADED]
            found.extend(Degraded(name, block.index, block.name) for name in names)
    found.extend(_cut_off(turn))
    found.extend(Degraded(reached.name, limit=reached.limit, used=reached.used) for reached in reached_limits(turn))
    if turn.request is not None:
        models = {round.model for round in turn.rounds if round.sealed and round.stop_reason != COMPACTED}
        if models - {None, turn.request.model}:
            found.append(Degraded(FALLBACK_MODEL))
        if any(round.sealed and round.stop_reason == ASSEMBLED for round in turn.rounds):
            found.append(Degraded(ASSEMBLED_ANSWER))
        if tools_have_failed(turn):
            found.append(Degraded(ALL_TOOLS_FAILED))
    if turn.hook_failures:
        found.append(Degraded(HOOK_FAILURES))
    return tuple(found)


def _cut_off(turn: Turn) -> Iterator[Degraded]:
    """Yields the interrupted replies that had output, and were later rewritten or continued."""
    for round in turn.rounds:
        whats = {VOIDED: REWRITTEN, INTERRUPTED: CONTINUED}
        tokens = round.spent.get("output_tokens")
        if round.stop_reason in whats and (round.estimated_tokens or not round.voided):
            yield Degraded(
                whats[round.stop_reason], round=round.number, output_tokens=tokens, estimated=round.is_estimated
            )

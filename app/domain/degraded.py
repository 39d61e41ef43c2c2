"""Degraded turns: the policies (retry, fallback, …) that a turn needed to get through, as its rows record them."""

import json
from dataclasses import dataclass

from app.domain.kinds import TOOL_RESULT
from app.domain.steps import tools_have_failed
from app.domain.turns import Turn

FALLBACK_MODEL = "fallback_model"
ALL_TOOLS_FAILED = "all_tools_failed"
HOOK_FAILURES = "hook_failures"
# Notes on results that needed no policy.
_NOT_DEGRADED = frozenset({"started_at", "seconds", "cached", "memo", "approval"})


@dataclass(frozen=True, slots=True)
class Degraded:
    """A policy, `what`, that was needed for the tool_result at `index`; without an index, for the whole turn."""

    what: str
    index: int | None = None
    tool: str | None = None


def degraded(turn: Turn) -> tuple[Degraded, ...]:
    """The policies that the turn needed, those of its results first."""
    found: list[Degraded] = []
    for block in turn.blocks:
        if block.type == TOOL_RESULT and block.notes is not None:
            names = [name for name in json.loads(block.notes) if name not in _NOT_DEGRADED]
            found.extend(Degraded(name, block.index, block.name) for name in names)
    if turn.request is not None:
        if any(round.sealed and round.model not in {None, turn.request.model} for round in turn.rounds):
            found.append(Degraded(FALLBACK_MODEL))
        if tools_have_failed(turn):
            found.append(Degraded(ALL_TOOLS_FAILED))
    if turn.hook_failures:
        found.append(Degraded(HOOK_FAILURES))
    return tuple(found)

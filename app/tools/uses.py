"""What is noted on a result when a policy was needed for it, and the count of that."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from app.telemetry import TOOL_POLICIES

# The keys of notes that say so; the engine writes the last three. docs/tools.md says what each holds.
Use = Literal["retries", "timeout", "breaker", "fallback", "cut", "waited", "memo", "calls_per_turn", "approval"]
USES: frozenset[str] = frozenset(get_args(Use))


def count_uses(tool: str, notes: Mapping[str, Any]) -> None:
    for use in USES & notes.keys():
        TOOL_POLICIES.labels(tool, use).inc()
    match notes.get("fallback"):
        case {"tool": str(stand_in), "notes": dict(its_notes)}:
            count_uses(stand_in, its_notes)
        case _:
            pass

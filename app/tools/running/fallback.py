"""A tool that stands in for one that failed: which may, and what the model is told of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.tools.policy import repeatable
from app.tools.tool import Outcome, Tool

_WHY = {"error": "failed", "timeout": "ran out of time", "unavailable": "is not available"}
HELPS: frozenset[str] = frozenset(_WHY)


def unfit(tool: Tool, tools: Mapping[str, Tool]) -> str | None:
    """Why the fallback of a tool, if it has one, must not stand in for it: a call may be run early, twice or without
    asking only if that holds for both.
    """
    name, fallback = tool.spec.name, tool.policy.fallback
    if fallback is None:
        return None
    if (stand_in := tools.get(fallback)) is None:
        return f"{name} has the fallback {fallback}, which is not in the toolset"
    if stand_in.policy.approval != "never":
        return f"{fallback} cannot be the fallback of {name}: a call of it may need an approval"
    if tool.spec.read_only and not stand_in.spec.read_only:
        return f"{fallback} cannot be the fallback of {name}, which is read_only: it is not"
    if repeatable(tool.spec) and not repeatable(stand_in.spec):
        return f"{fallback} cannot be the fallback of {name}, which is retry_safe: it is not"
    return None


def both(first: Outcome, stand_in: Tool, second: Outcome) -> Outcome:
    """What is told when `stand_in` was run because the first had failed."""
    name = stand_in.spec.name
    note: dict[str, Any] = {"tool": name, "because": first.kind}
    if second.notes:
        note["notes"] = dict(second.notes)
    notes = {**first.notes, "fallback": note}
    if second.is_error:
        return replace(first.saying(*first.parts, f"[{name} was run instead:]", *second.parts), notes=notes)
    said = f"[The tool that was called {_WHY[first.kind]}; this is the answer of {name}.]"
    return replace(second.saying(said, *second.parts), notes=notes)

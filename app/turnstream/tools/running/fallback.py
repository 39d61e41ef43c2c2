"""The fallback of a failed tool: checks whether it can replace the tool, makes its input, and joins the outcomes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnstream.tools.policy import Fallback, repeatable
from turnstream.tools.schemas import InputSchema
from turnstream.tools.tool import Outcome, Tool

_REASONS = {"error": "failed", "timeout": "ran out of time", "unavailable": "is not available"}
FAILURES: frozenset[str] = frozenset(_REASONS)  # the kinds of outcome after which a fallback runs
_MOST_SHOWN = 500  # characters that the model sees of a changed input

_Schema = Mapping[str, Any]


def fallback_problem(tool: Tool, tools: Mapping[str, Tool]) -> str | None:
    """Returns the reason why the fallback of a tool cannot replace the tool; None if it can, or if there is no
    fallback. A call may run early, run twice or run without an approval only if both tools allow that.
    """
    name, fallback = tool.spec.name, tool.policy.stand_in
    if fallback is None:
        return None
    if (stand_in := tools.get(fallback.tool)) is None:
        return f"{name} has the fallback {fallback.tool}, which is not in the toolset: add it, or name another tool"
    refused = f"{fallback.tool} cannot be the fallback of {name}"
    if stand_in.policy.approval != "never":
        return f"{refused}: a call of it may need an approval"
    if tool.spec.read_only and not stand_in.spec.read_only:
        return f"{refused}: {name} is read_only, and {fallback.tool} is not"
    if repeatable(tool.spec) and not repeatable(stand_in.spec):
        return f"{refused}: {name} is retry_safe, and {fallback.tool} is not"
    misfit = _misfit(fallback, json.loads(tool.spec.input_schema), json.loads(stand_in.spec.input_schema))
    return None if misfit is None else f"{refused}: {misfit}"


def input_of(fallback: Fallback, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fallback's input for a call with the input `sent`. A program's function may raise any exception."""
    if callable(fallback.input):
        return {**fallback.input(sent), **fallback.add}
    if fallback.input is None:
        return {**sent, **fallback.add}
    return {name: sent[source] for name, source in fallback.input.items() if source in sent} | dict(fallback.add)


def with_fallback(first: Outcome, fallback: Fallback, second: Outcome, input_json: str | None = None) -> Outcome:
    """Joins the outcomes of a failed call and of its fallback. `input_json` is the fallback's input, if changed."""
    note: dict[str, Any] = {"tool": fallback.tool, "because": first.kind}
    called = ""
    if input_json is not None:
        note["input"] = input_json
        shown = input_json if len(input_json) <= _MOST_SHOWN else f"{input_json[:_MOST_SHOWN]}…"
        called = f" with the input {shown}"
    if second.notes:
        note["notes"] = dict(second.notes)
    notes = {**first.notes, "fallback": note}
    if second.is_error:
        instead = f"[{fallback.tool} was run instead{called}:]"
        return replace(first.with_parts(*first.parts, instead, *second.parts), notes=notes)
    reason = f"[The tool that was called {_REASONS[first.kind]}; this is the answer of {fallback.tool}{called}.]"
    return replace(second.with_parts(reason, *second.parts), notes=notes)


# --- schemas ---------------------------------------------------------------------------------------------------------


def _misfit(fallback: Fallback, first: _Schema, second: _Schema) -> str | None:
    """Returns the reason why no input of `first` is valid for `second`; None if an input is valid, or in doubt."""
    known, needed, takes = _members(first), _required(first), _members(second)
    for name, value in fallback.add.items():
        if name not in takes and _is_closed(second):
            return f"`add` has `{name}`, which {fallback.tool} does not take"
        whole = {**second, "required": [], "additionalProperties": True}
        if complaint := InputSchema(json.dumps(whole)).complaint({name: value}):
            return f"`add` has a wrong value. {complaint}"
    if callable(fallback.input):
        return None
    if fallback.input is None:
        sources = {name: name for name in known if name not in fallback.add}
        # An open schema accepts every member, also a member that the schema does not name.
        unknown = next((name for name in sources if name in needed and name not in takes), None)
        if unknown is not None and _is_closed(second):
            return f"it does not take `{unknown}`, which every call has; map the `input`"
    else:
        sources = dict(fallback.input)
        for name, source in sources.items():
            if source not in known:
                return f"`input` takes `{name}` from `{source}`, which the tool does not have"
            if name not in takes and _is_closed(second):
                return f"`input` has `{name}`, which {fallback.tool} does not take"
    missing = [name for name in _required(second) if name not in sources and name not in fallback.add]
    if missing and (known or fallback.input is not None or _is_closed(first)):
        return f"it needs `{missing[0]}`: map it in `input` or give it in `add`"
    for name, source in sources.items():
        if source in needed or name in _required(second):
            given, wanted = _types(known.get(source)), _types(takes.get(name))
            if given and wanted and not _overlap(given, wanted):
                return f"its `{name}` must be of type {_either(wanted)}, and `{source}` is of type {_either(given)}"
    return None


def _members(schema: _Schema) -> Mapping[str, Any]:
    members = schema.get("properties")
    return members if isinstance(members, Mapping) else {}


def _required(schema: _Schema) -> list[str]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _is_closed(schema: _Schema) -> bool:
    return schema.get("additionalProperties") is False


def _types(schema: Any) -> frozenset[str]:
    """Returns the JSON types that a schema names; empty if it names no types."""
    match schema:
        case {"type": str(one)}:
            return frozenset({one})
        case {"type": [*several]}:
            return frozenset(map(str, several))
        case {"anyOf": [*choices]}:
            types = [_types(choice) for choice in choices]
            return frozenset().union(*types) if all(types) else frozenset()
        case _:
            return frozenset()


def _overlap(given: frozenset[str], wanted: frozenset[str]) -> bool:
    numbers = {"integer", "number"}
    return bool(given & wanted) or bool(given & numbers and wanted & numbers)


def _either(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))

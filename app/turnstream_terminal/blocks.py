"""Describes blocks in words: tool results, people's decisions, shortened results, verdicts, full contents."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from turnstream_client.events import Json
from turnstream_terminal.text import one_line, printable

_REMARKS: Final[Mapping[str, str]] = {
    "retries": "tried again",
    "timeout": "timed out",
    "breaker": "paused after failures",
    "fallback": "replaced by another tool",
    "cut": "cut",
    "data_left_out": "its data left out",
    "waited": "had to wait",
    "calls_per_turn": "called too often",
    "summarised": "summarised",
    "summary_failed": "could not be summarised",
    "cached": "kept answer",
    "memo": "result reused",
    "job": "started in the background",
    "handoff": "its answer is that of the turn",
    "assembled_answer": "no model could answer",
    "all_tools_failed": "all tools failed",
    "hook_failures": "hooks of the server failed",
    "continued": "interrupted and continued",
    "max_rounds": "limit of tool rounds reached",
    "hard_max_rounds": "limit of tool rounds reached",
    "max_calls": "limit of tool calls reached",
    "budget_tokens": "budget of tokens used up",
    "budget_cost": "budget used up",
    "budget_seconds": "time used up",
    "rewritten": "interrupted and written anew",
}
_REASONS_NOT_RUN: Final[Mapping[str, str]] = {
    "denied": "not allowed",
    "expired": "not answered in time",
    "superseded": "not run, because the user wrote something else",
}
# These notes need no remark: every result has the times, and `reason_not_run` and `edited_input` show the approval.
_NOT_REMARKED: Final = frozenset({"started_at", "seconds", "approval"})


def block_of_upload(upload: Json, name: str) -> Json:
    """Returns a block that attaches an uploaded file to a message."""
    source = {"type": "upload", "id": upload["id"]}
    if upload["media_type"].startswith("image/"):
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": name}


def result_remarks(result: Json) -> list[str]:
    """Returns remarks on what was unusual about a tool_result, such as an edited input or a retry."""
    edited = ["edited"] if edited_input(result) is not None else []
    edited += ["allowed for this chat"] if _approval(result).get("decision") == "remembered" else []
    edited += [f"decided by {by}"] if (by := _approval(result).get("by")) else []
    return edited + [_remark(note) for note in _notes(result) if note not in _NOT_REMARKED]


def file_labels(result: Json) -> list[str]:
    """Returns a label such as `[image/png]` for each image and document of a tool_result."""
    content = result.get("content") or ()
    return [f"[{part['source']['media_type']}]" for part in content if part["type"] != "text"]


def reason_not_run(result: Json) -> str:
    """Returns the reason why a call did not run or was stopped; empty if the call ran to its end."""
    if _notes(result).get("stopped"):
        return "stopped by a person"
    return _REASONS_NOT_RUN.get(_approval(result).get("decision", ""), "")


def edited_input(result: Json) -> Any:
    """Returns the arguments as a person edited them; None if nobody edited them."""
    text = _approval(result).get("input")
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def shortened_summary(data: Json) -> tuple[str, str]:
    """Describes a `shortened` block in two texts: how many results were shortened, and how much was omitted."""
    count, sent, files = data["results"], data["results"] * data["head"], data.get("files", 0)
    results = f"{count:,} older tool result{'s' if count > 1 else ''} sent shortened"
    if files:
        return results, f"without {data['left_out']:,} characters and {files:,} file{'s' if files > 1 else ''}"
    return results, f"from {sent + data['left_out']:,} characters to {sent:,}"


def verdict_problem(verdict: Json) -> str:
    """Returns the reason why an output was rejected."""
    return str(verdict["text"]).removeprefix("The output is not right. ")


def degraded_line(degraded: Sequence[Json]) -> str:
    """Summarises the degradations of a turn: `degraded: search cut, tried again · fetch timed out · all tools failed`;
    empty if nothing was degraded.
    """
    by_tool: dict[str, list[str]] = {}
    for item in degraded:
        remarks = by_tool.setdefault(item.get("tool") or "", [])
        if (remark := _remark(item["what"]) + _cost(item)) not in remarks:
            remarks.append(remark)
    tools = " · ".join(f"{tool} {', '.join(remarks)}".strip() for tool, remarks in by_tool.items())
    return f"degraded: {tools}" if tools else ""


def full_blocks(blocks: Sequence[Json]) -> Iterator[RenderableType]:
    """Renders all blocks of a turn without truncation."""
    for block in blocks:
        yield Rule(Text(_heading(block)), align="left", style="dim")
        yield Padding(Text(printable(_content(block))), (0, 2))


def _heading(block: Json) -> str:
    heading = [block["type"].replace("_", " "), one_line(block.get("name") or "")]
    heading += ["interrupted"] if block.get("interrupted") else []
    heading += ["failed"] if block.get("is_error") else []
    if block["type"] == "tool_result":
        heading += map(one_line, result_remarks(block))
    return " · ".join(filter(None, heading))


def _content(block: Json) -> str:
    value: Any = block.get("input")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, indent=2)
    if block["type"] == "shortened" and (data := block.get("data")):
        first, last, sent = data["first"], data["last"], f"the first {data['head']:,} characters of each are sent"
        other_turn = "" if first["turn"] == last["turn"] else f" of turn {first['turn']}"
        rounds = f"Round {first['round']}{other_turn} to round {last['round']} of turn {last['turn']}"
        return f"{block['text']}\n{rounds}: {sent}."
    data = block.get("data") if block["type"] == "tool_result" else None
    more = [] if data is None else [f"Data that the model does not get: {json.dumps(data, ensure_ascii=False)}"]
    return "\n".join(filter(None, [block["text"] or value, *file_labels(block), *more])) or "(nothing)"


def _notes(result: Json) -> Mapping[str, Any]:
    notes = result.get("notes")
    return notes if isinstance(notes, dict) else {}


def _approval(result: Json) -> Mapping[str, Any]:
    approval = _notes(result).get("approval")
    return approval if isinstance(approval, dict) else {}


def _cost(item: Json) -> str:
    """Returns the tokens of an interrupted reply, or the used part of a limit."""
    if item.get("limit") is not None:
        return f" ({item['used']:,} of {item['limit']:,})"
    tokens = item.get("output_tokens")
    return f" ({'about ' if item.get('estimated') else ''}{tokens:,} tokens before that)" if tokens else ""


def _remark(note: str) -> str:
    return _REMARKS.get(note, note.replace("_", " "))

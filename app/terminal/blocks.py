"""What is noted between a model's words, in ours: which policies a call needed, what a person decided about it, that
older results are sent shortened, and what became of an output.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from app.terminal.assembler import Json
from app.terminal.text import clean, one_line

_WORDS: Final[Mapping[str, str]] = {
    "retries": "tried again",
    "timeout": "out of time",
    "breaker": "left alone",
    "fallback": "replaced by another tool",
    "cut": "cut",
    "waited": "had to wait",
    "calls_per_turn": "called too often",
    "memo": "as before",
    "all_tools_failed": "no tool worked",
}
_NOT_RUN: Final[Mapping[str, str]] = {
    "denied": "not allowed",
    "expired": "nobody answered in time",
    "superseded": "not run, because something else was said",
}
# Every call takes its time, and what became of an approval is told otherwise.
_UNSAID: Final = frozenset({"started_at", "seconds", "approval"})


def remarks(result: Json) -> list[str]:
    """What is worth a word about a tool_result."""
    edited = ["edited"] if edited_input(result) is not None else []
    return edited + [_word(note) for note in _notes(result) if note not in _UNSAID]


def files_in_words(result: Json) -> list[str]:
    """The images and documents of a tool_result: `[image/png]`."""
    content = result.get("content") or ()
    return [f"[{part['source']['media_type']}]" for part in content if part["type"] != "text"]


def why_not_run(result: Json) -> str:
    """Why a call that waited for a person was not run; empty for one that was."""
    return _NOT_RUN.get(_approval(result).get("decision", ""), "")


def edited_input(result: Json) -> Any:
    """What a person made of the arguments; None for nothing."""
    text = _approval(result).get("input")
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def shortened_in_words(data: Json) -> tuple[str, str]:
    """What a `shortened` did, in a few words: to how many results, and to how many characters of them."""
    count, sent, files = data["results"], data["results"] * data["head"], data.get("files", 0)
    what = f"{count:,} older tool result{'s' if count > 1 else ''} sent shortened"
    if files:
        return what, f"without {data['left_out']:,} characters and {files:,} file{'s' if files > 1 else ''}"
    return what, f"from {sent + data['left_out']:,} characters to {sent:,}"


def which_were_shortened(data: Json) -> str:
    first, last, each = data["first"], data["last"], f"the first {data['head']:,} characters of each are sent"
    if first["turn"] == last["turn"]:
        return f"Round {first['round']} to round {last['round']} of turn {last['turn']}: {each}."
    return f"Round {first['round']} of turn {first['turn']} to round {last['round']} of turn {last['turn']}: {each}."


def what_is_wrong(verdict: Json) -> str:
    """Of an output that was not accepted."""
    return str(verdict["text"]).removeprefix("The output is not right. ")


def degraded_line(degraded: Sequence[Json]) -> str:
    """`degraded: search cut, tried again · fetch out of time · no tool worked`; empty for nothing."""
    by_tool: dict[str, list[str]] = {}
    for item in degraded:
        words = by_tool.setdefault(item.get("tool", ""), [])
        if (word := _word(item["what"])) not in words:
            words.append(word)
    told = " · ".join(_told(by_tool))
    return f"degraded: {told}" if told else ""


def _told(by_tool: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for tool, words in by_tool.items():
        yield f"{tool} {', '.join(words)}".strip()


def _notes(result: Json) -> Mapping[str, Any]:
    notes = result.get("notes")
    return notes if isinstance(notes, dict) else {}


def _approval(result: Json) -> Mapping[str, Any]:
    approval = _notes(result).get("approval")
    return approval if isinstance(approval, dict) else {}


def _word(note: str) -> str:
    return _WORDS.get(note, note.replace("_", " "))


# --- at full length ---


def unfolded(blocks: Sequence[Json]) -> Iterator[RenderableType]:
    for block in blocks:
        yield Rule(Text(_heading(block)), align="left", style="dim")
        yield Padding(Text(clean(_content(block))), (0, 2))


def _heading(block: Json) -> str:
    words = [block["type"].replace("_", " "), one_line(block.get("name") or "")]
    words += [word for word in ("interrupted", "is_error") if block.get(word)]
    if block["type"] == "tool_result":
        words += map(one_line, remarks(block))
    return " · ".join(filter(None, words)).replace("is_error", "failed")


def _content(block: Json) -> str:
    value: Any = block.get("input")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, indent=2)
    if block["type"] == "shortened" and block.get("data"):
        return f"{block['text']}\n{which_were_shortened(block['data'])}"
    return "\n".join(filter(None, [block["text"] or value, *files_in_words(block)])) or "(nothing)"

"""Everything a turn is made of, at full length."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from app.terminal.assembler import Json
from app.terminal.notes import files_in_words, remarks, which_were_shortened
from app.terminal.parts import clean, one_line


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

"""Tool results that contain files besides text.

The row of a result stores all texts of the result as one text, joined by line breaks. Its `data` is the layout, a list
of parts. A part is `{"type": "text", "length": n}`, for the next `n` characters, or the object of an image or document.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import FILES, TEXT, TOOL_RESULT

Json = Mapping[str, Any]
# A text, or a file: the JSON object of an image or a document.
ResultPart = str | Json


def joined_texts(parts: Sequence[ResultPart]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


def layout_of(parts: Sequence[ResultPart]) -> str | None:
    """Returns the layout of a result that has these texts and files; None if the result is a single text."""
    if len(parts) <= 1 and all(isinstance(part, str) for part in parts):
        return None
    content = [{"type": TEXT, "length": len(part)} if isinstance(part, str) else part for part in parts]
    return json.dumps({"type": TOOL_RESULT, "content": content}, ensure_ascii=False, separators=(",", ":"))


def parts_of(result: Block) -> list[Json]:
    """Returns the texts and files of a result in order, each text as `{"type": "text", "text": …}`."""
    if result.data is None:
        return [{"type": TEXT, "text": result.text}] if result.text else []
    parts: list[Json] = []
    end = 0
    for part in content_of(result.data):
        if "length" in part:
            start, end = end, end + part["length"] + 1
            parts.append({"type": TEXT, "text": result.text[start : end - 1]})
        else:
            parts.append(part)
    return parts


def content_of(data: str) -> Sequence[Json]:
    """Returns the list of parts that a layout contains."""
    content: Sequence[Json] = json.loads(data).get("content") or ()
    return content


def result_as_text(result: Block, instead: str) -> Block:
    """Returns the result as one text: `instead` replaces each file, and `{type}` in `instead` is the file's type."""
    parts = parts_of(result)
    words = [part["text"] if part["type"] == TEXT else instead.format(type=part["type"]) for part in parts]
    return replace(result, text=joined_texts(words), data=None)


def summary_notes(results: Iterable[Block]) -> Iterator[Json]:
    """Yields the note about each summarised result: the `model`, `usage` and `cost` of the summary."""
    for result in results:
        if result.type == TOOL_RESULT and result.notes is not None and '"summarised"' in result.notes:
            yield json.loads(result.notes)["summarised"]


def count_files(result: Block) -> int:
    return 0 if result.data is None else sum(part["type"] in FILES for part in content_of(result.data))

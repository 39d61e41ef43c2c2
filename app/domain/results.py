"""What a tool's result holds besides words. Its row keeps all words in one text; its `data` says how they lie between
the files: `{"type": "text", "length": n}` for the next `n` characters, or an image or a document by its source. One
line break stands between two texts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.blocks import Block
from app.domain.kinds import FILES, TEXT, TOOL_RESULT

Json = Mapping[str, Any]
# A text, or a file as a block names it.
Part = str | Json


def joined_texts(parts: Sequence[Part]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


def layout_of(parts: Sequence[Part]) -> str | None:
    """The `data` of a result of these texts and files; None for one that is nothing but a text."""
    if len(parts) <= 1 and all(isinstance(part, str) for part in parts):
        return None
    content = [{"type": TEXT, "length": len(part)} if isinstance(part, str) else part for part in parts]
    return json.dumps({"type": TOOL_RESULT, "content": content}, ensure_ascii=False, separators=(",", ":"))


def parts_of(result: Block) -> list[Json]:
    """The texts and files of a result, in their order: `{"type": "text", "text": …}`, or as its row names the file."""
    if result.data is None:
        return [{"type": TEXT, "text": result.text}] if result.text else []
    return list(_parts(result.text, content_of(result.data)))


def content_of(data: str) -> Sequence[Json]:
    """How the `data` of a result says that it is laid out."""
    content: Sequence[Json] = json.loads(data).get("content") or ()
    return content


def result_as_text(result: Block, instead: str) -> Block:
    """The result without its files: `instead` is said in their places, with the type of each."""
    parts = parts_of(result)
    words = [part["text"] if part["type"] == TEXT else instead.format(type=part["type"]) for part in parts]
    return replace(result, text=joined_texts(words), data=None)


def count_files(result: Block) -> int:
    return 0 if result.data is None else sum(part["type"] in FILES for part in content_of(result.data))


def _parts(text: str, content: Sequence[Json]) -> Iterator[Json]:
    end = 0
    for part in content:
        if "length" in part:
            start, end = end, end + part["length"] + 1
            yield {"type": TEXT, "text": text[start : end - 1]}
        else:
            yield part

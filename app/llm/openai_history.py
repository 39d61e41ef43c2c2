"""What was said, as OpenAI's APIs are told it.

Left out are the thoughts of other providers, what their server tools did, and everything else that has no words.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.blocks import TEXT, Block

SILENT_FAILURE = "The tool failed and said nothing."
FAILED = "Error: "
NO_OUTPUT = "(no output)"
LEFT_OUT = "(An attachment of the type {type} was left out: it cannot be shown here.)"


def said_by_tool(block: Block) -> str:
    """OpenAI has no mark for a result that is an error, so its first word is. Only words can be a result."""
    text = block.text or _words(block.data)
    if block.is_error:
        return FAILED + text if text else SILENT_FAILURE
    return text or NO_OUTPUT


def _words(data: str | None) -> str:
    content = json.loads(data).get("content") if data else None
    if isinstance(content, str):
        return content
    return "\n\n".join(_word(piece) for piece in content or () if isinstance(piece, Mapping))


def _word(piece: Mapping[str, Any]) -> str:
    return piece["text"] if isinstance(piece.get("text"), str) else LEFT_OUT.format(type=piece.get("type"))


def written(blocks: Sequence[Block]) -> str:
    """The text of an answer. Its pieces belong together, unless something was between them that is left out here."""
    pieces: list[str] = []
    apart = False
    for block in blocks:
        if block.type == TEXT:
            pieces.append(("\n\n" if apart and pieces else "") + block.text)
            apart = False
        else:
            apart = apart or block.type.endswith("_tool_result")
    return "".join(pieces)


def attachment(block: Block) -> tuple[str, Mapping[str, Any]]:
    """An image or a document, by where it is: ("text", …), ("url", …), ("data", …) or ("none", …)."""
    source = json.loads(block.data or "{}").get("source") or {}
    match source.get("type"):
        case "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
            return "data", {**source, "url": url}
        case "url":
            return "url", source
        case "text":
            return "text", {"text": source.get("data", "")}
        case _:
            return "none", {}

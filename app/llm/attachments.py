"""Images and documents of user turns. A row says which upload is meant; what is sent holds its bytes."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from app.domain.blocks import DOCUMENT, IMAGE, TEXT, Block
from app.llm.provider import Message

GONE = "[What was attached here is no longer stored.]"


def uploads_in(messages: Sequence[Message]) -> frozenset[UUID]:
    """The uploads that the messages mean."""
    blocks = (block for message in messages for block in message.blocks)
    return frozenset(UUID(source["id"]) for block in blocks if (source := _source(block)).get("type") == "upload")


def attached(messages: Sequence[Message], uploads: Mapping[UUID, bytes]) -> tuple[Message, ...]:
    """The messages with what they mean in them. An upload that is gone is said to be."""
    return tuple(
        replace(message, blocks=tuple(_attached(block, uploads) for block in message.blocks))
        if any(block.type in _ATTACHED for block in message.blocks)
        else message
        for message in messages
    )


_ATTACHED = frozenset({IMAGE, DOCUMENT})


def _source(block: Block) -> dict[str, Any]:
    if block.type not in _ATTACHED or block.data is None:
        return {}
    source: dict[str, Any] = json.loads(block.data).get("source") or {}
    return source


def _attached(block: Block, uploads: Mapping[UUID, bytes]) -> Block:
    source = _source(block)
    match source.get("type"):
        case "upload":
            content = uploads.get(UUID(source["id"]))
            if content is None:
                return replace(block, type=TEXT, text=GONE, data=None)
            return _with_source(block, _inline(content, source["media_type"]))
        case "text":
            return _with_source(replace(block, text=""), {**source, "data": block.text})
        case _:
            return block


def _inline(content: bytes, media_type: str) -> dict[str, str]:
    if media_type == "text/plain":
        return {"type": "text", "media_type": media_type, "data": content.decode()}
    return {"type": "base64", "media_type": media_type, "data": b64encode(content).decode()}


def _with_source(block: Block, source: Mapping[str, str]) -> Block:
    members = {**json.loads(block.data or "{}"), "source": source}
    return replace(block, data=json.dumps(members, ensure_ascii=False, separators=(",", ":")))

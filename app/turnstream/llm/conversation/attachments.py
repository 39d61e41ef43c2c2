"""Images and documents in user turns and in tool results. Rows refer to uploads; requests contain the bytes of the
uploads. A text replaces a deleted file, or a file that the model cannot read.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import FILES, TEXT, TOOL_RESULT, WITH_FILES
from turnstream.domain.media import PLAIN
from turnstream.domain.results import content_of
from turnstream.llm.provider import Message

GONE = "[What was attached here is no longer stored.]"
LEFT_OUT = "(An attachment of the type {type} was left out: it cannot be shown here.)"


Json = dict[str, Any]
# Maps the type and members of a file to the members to send. Returns the same object if nothing changes.
FileFilter = Callable[[str, Json], Json]


def upload_ids_in(messages: Sequence[Message]) -> frozenset[UUID]:
    """Returns the uploads that the messages refer to."""
    files: list[Mapping[str, Any]] = []
    for block in (block for message in messages for block in message.blocks):
        if block.data is not None and block.type in FILES:
            files.append(json.loads(block.data))
        elif block.data is not None and block.type == TOOL_RESULT:
            files += content_of(block.data)
    sources = (file.get("source") or {} for file in files)
    return frozenset(UUID(source["id"]) for source in sources if source.get("type") == "upload")


def with_uploads(messages: Sequence[Message], uploads: Mapping[UUID, bytes]) -> tuple[Message, ...]:
    """Inserts the bytes of uploads into the messages, and a text in place of each deleted upload."""

    def with_bytes(_type: str, file: Json) -> Json:
        source = file.get("source") or {}
        if source.get("type") != "upload":
            return file
        content = uploads.get(UUID(source["id"]))
        if content is None:
            return _text(GONE)
        media_type = source["media_type"]
        if media_type == PLAIN:
            return {**file, "source": {"type": "text", "media_type": media_type, "data": content.decode()}}
        data = b64encode(content).decode()
        return {**file, "source": {"type": "base64", "media_type": media_type, "data": data}}

    return _with_files(messages, with_bytes)


def without_files(messages: Sequence[Message], types: Collection[str]) -> tuple[Message, ...]:
    """Replaces files of these types by a text, for a model that cannot read them."""
    return _with_files(messages, lambda type, file: _text(LEFT_OUT.format(type=type)) if type in types else file)


def _with_files(messages: Iterable[Message], change: FileFilter) -> tuple[Message, ...]:
    return tuple(
        replace(message, blocks=tuple(_with_files_in_block(block, change) for block in message.blocks))
        if any(block.type in WITH_FILES and block.data is not None for block in message.blocks)
        else message
        for message in messages
    )


def _with_files_in_block(block: Block, change: FileFilter) -> Block:
    if block.data is None or block.type not in WITH_FILES:
        return block
    members: Json = json.loads(block.data)
    if block.type == TOOL_RESULT:
        content = [change(part["type"], part) if part["type"] in FILES else part for part in members["content"]]
        if all(part is before for part, before in zip(content, members["content"], strict=True)):
            return block
        return replace(block, data=_json({**members, "content": content}))
    changed = change(block.type, members)
    if changed.get("type") == TEXT:
        return replace(block, type=TEXT, text=changed["text"], data=None)
    if (source := changed.get("source") or {}).get("type") == "text" and "data" not in source:
        return replace(block, text="", data=_json({**changed, "source": {**source, "data": block.text}}))
    return block if changed is members else replace(block, data=_json(changed))


def _text(text: str) -> Json:
    return {"type": TEXT, "text": text}


def _json(members: Json) -> str:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))

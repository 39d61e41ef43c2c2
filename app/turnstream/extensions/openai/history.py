"""Converts messages to OpenAI's conversations: the part that both APIs share.

Thoughts of other providers, results of other providers' server tools, and other blocks without text are omitted.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import FILES, TEXT, THINKING, TOOL_RESULT
from turnstream.domain.results import count_files, joined_texts, parts_of, result_as_text
from turnstream.libraries.providers.translation import SILENT_FAILURE
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.provider import Message

FAILED = "Error: "
NO_OUTPUT = "(no output)"
BELOW = "(This {type} is shown below.)"
RETURNED = "Returned by {name}:"

Json = dict[str, Any]
Render = Callable[[Sequence[Block]], Iterable[Any]]


def conversation(
    messages: Sequence[Message],
    results: Render,
    reply: Render,
    part: Callable[[Block], Json],
    *,
    prefilled: bool = False,
) -> Iterator[Any]:
    """Yields the items of a conversation, rendered by the three functions of the API.

    Blocks of the user are held back until the next reply, so that a reply without sendable blocks does not separate
    them. If the last message is a reply, a prompt to continue follows, unless the reply is `prefilled`.
    """
    held: list[Block] = []
    last: str | None = None
    for message in messages:
        if message.role == "user":
            yield from results([block for block in message.blocks if block.type == TOOL_RESULT])
            held += [block for block in message.blocks if block.type != TOOL_RESULT]
        elif items := list(reply(message.blocks)):
            yield from _user(held, part)
            held = []
            yield from items
        last = message.role
    if last == "assistant" and not held and not prefilled:
        held = [Block(0, 0, 0, TEXT, GO_ON)]
    yield from _user(held, part)


def _user(blocks: Sequence[Block], part: Callable[[Block], Json]) -> Iterator[Json]:
    """Yields the user message. A message that has only texts becomes one string, because not every server accepts a
    list.
    """
    if blocks:
        parts = list(_joined_texts(map(part, blocks)))
        only_text = len(parts) == 1 and "text" in parts[0]
        yield {"role": "user", "content": parts[0]["text"] if only_text else parts}


def _joined_texts(parts: Iterable[Json]) -> Iterator[Json]:
    """Joins adjacent texts."""
    texts: list[Json] = []
    for part in (*parts, None):
        if part is not None and "text" in part:
            texts.append(part)
            continue
        if texts:
            yield {**texts[0], "text": "\n\n".join(text["text"] for text in texts)}
            texts = []
        if part is not None:
            yield part


def result_text(block: Block) -> str:
    """Returns the text of a result. OpenAI has no error flag, so the text of a failure begins with `Error: `."""
    text = joined_texts([part["text"] for part in parts_of(block) if part["type"] == TEXT])
    if block.is_error:
        return FAILED + text if text else SILENT_FAILURE
    return text or NO_OUTPUT


def with_files_behind_results(message: Message) -> Message:
    """Moves the files of results into blocks of the user, which follow all results. The API allows only text in
    results.
    """
    with_files = [block for block in message.blocks if block.type == TOOL_RESULT and count_files(block)]
    if not with_files:
        return message
    results = [result_as_text(block, BELOW) for block in message.blocks if block.type == TOOL_RESULT]
    files: list[Block] = []
    for result in with_files:
        files.append(Block(0, 0, 0, TEXT, RETURNED.format(name=result.name)))
        files += [as_block(part) for part in parts_of(result) if part["type"] in FILES]
    others = [block for block in message.blocks if block.type != TOOL_RESULT]
    return replace(message, blocks=(*results, *files, *others))


def as_block(part: Mapping[str, Any]) -> Block:
    """Converts a part of a result to a block of the user."""
    if part["type"] == TEXT:
        return Block(0, 0, 0, TEXT, part["text"])
    return Block(0, 0, 0, part["type"], data=json.dumps(part))


def reply_text(blocks: Sequence[Block]) -> str:
    """Joins the texts of a reply. A blank line separates two texts if a block between them, other than a thought, is
    omitted.
    """
    pieces: list[str] = []
    apart = False
    for block in blocks:
        if block.type == TEXT:
            pieces.append(("\n\n" if apart and pieces else "") + block.text)
            apart = False
        else:
            apart = apart or block.type != THINKING
    return "".join(pieces)


def file_name(block: Block) -> str:
    members: Mapping[str, Any] = json.loads(block.data or "{}")
    return str(members.get("title") or "document.pdf")


def file_source(block: Block) -> tuple[str, Mapping[str, Any]]:
    """Returns the source of an image or a document: ("text", …), ("url", …), ("data", …) or ("none", …)."""
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

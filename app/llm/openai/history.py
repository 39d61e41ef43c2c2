"""What was said, as OpenAI's APIs are told it.

Left out are the thoughts of other providers, what their server tools did, and everything else that has no words.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.blocks import Block
from app.domain.kinds import FILES, TEXT, THINKING, TOOL_RESULT
from app.domain.results import count_files, joined_texts, parts_of, result_as_text
from app.llm.conversation.messages import GO_ON
from app.llm.conversation.translation import SILENT_FAILURE
from app.llm.provider import Message

FAILED = "Error: "
NO_OUTPUT = "(no output)"
BELOW = "(This {type} is shown below.)"
RETURNED = "Returned by {name}:"

Said = dict[str, Any]
Says = Callable[[Sequence[Block]], Iterable[Any]]


def told(messages: Sequence[Message], results: Says, answer: Says, part: Callable[[Block], Said]) -> Iterator[Any]:
    """The user's words are gathered until somebody else speaks: an answer of which nothing is left divides nothing.

    An answer that another provider was asked to go on with, as it can, is asked for in words here.
    """
    waiting: list[Block] = []
    last: str | None = None
    for message in messages:
        if message.role == "user":
            yield from results([block for block in message.blocks if block.type == TOOL_RESULT])
            waiting += [block for block in message.blocks if block.type != TOOL_RESULT]
        elif said := list(answer(message.blocks)):
            yield from _user(waiting, part)
            waiting = []
            yield from said
        last = message.role
    if last == "assistant" and not waiting:
        waiting = [Block(0, 0, 0, TEXT, GO_ON)]
    yield from _user(waiting, part)


def _user(blocks: Sequence[Block], part: Callable[[Block], Said]) -> Iterator[Said]:
    """The content is one text where there are but words: not every server takes a list."""
    if blocks:
        merged = list(_merged(map(part, blocks)))
        only_words = len(merged) == 1 and "text" in merged[0]
        yield {"role": "user", "content": merged[0]["text"] if only_words else merged}


def _merged(parts: Iterable[Said]) -> Iterator[Said]:
    """Neighbouring texts as one."""
    words: list[Said] = []
    for part in parts:
        if "text" in part:
            words.append(part)
            continue
        yield from _joined(words)
        words = []
        yield part
    yield from _joined(words)


def _joined(words: Sequence[Said]) -> Iterator[Said]:
    if words:
        yield {**words[0], "text": "\n\n".join(part["text"] for part in words)}


def said_by_tool(block: Block) -> str:
    """The words of a result. OpenAI has no mark for one that is an error, so its first word is."""
    text = joined_texts([part["text"] for part in parts_of(block) if part["type"] == TEXT])
    if block.is_error:
        return FAILED + text if text else SILENT_FAILURE
    return text or NO_OUTPUT


def with_files_apart(message: Message) -> Message:
    """The message with the files of its results said by the user, behind all results: for an API whose results are
    words.
    """
    of_files = [block for block in message.blocks if block.type == TOOL_RESULT and count_files(block)]
    if not of_files:
        return message
    results = [result_as_text(block, BELOW) for block in message.blocks if block.type == TOOL_RESULT]
    files = [said for result in of_files for said in _files_of(result)]
    words = [block for block in message.blocks if block.type != TOOL_RESULT]
    return replace(message, blocks=(*results, *files, *words))


def _files_of(result: Block) -> Iterator[Block]:
    yield Block(0, 0, 0, TEXT, RETURNED.format(name=result.name))
    yield from (said_by_user(part) for part in parts_of(result) if part["type"] in FILES)


def said_by_user(part: Mapping[str, Any]) -> Block:
    """A part of a result as a user would say it."""
    if part["type"] == TEXT:
        return Block(0, 0, 0, TEXT, part["text"])
    return Block(0, 0, 0, part["type"], data=json.dumps(part))


def written(blocks: Sequence[Block]) -> str:
    """The text of an answer. Its pieces belong together, unless something was between them that is left out here."""
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

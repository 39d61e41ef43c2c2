"""The demo provider, for a server without keys: a script that calls the real tools of the library.

Its next step follows from the request alone: the tools that were called since the last user message, and their results.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from app.domain.kinds import TEXT, TOOL_RESULT
from app.llm.conversation.messages import GO_ON
from app.llm.provider import BlockText, Message, ModelRequest, Part
from app.llm.scripted import message_of, text, thinking, tool_use

DEMO = "demo"
_INTRODUCTION = "This is a scripted demo, no model is answering: set ANTHROPIC_API_KEY for that. "
_COMMON = re.compile(
    "about|also|could|does|find|from|give|have|hello|help|into|know|like|look|more|please|show|some|tell|than|thank|that|"
    "their|them|then|there|they|this|want|were|what|when|where|which|will|with|would|your"
)
_LISTING = re.compile(r"\b(list|tree|files?|folders?|documents?|library|everything|what is there)\b", re.IGNORECASE)
_HIT = re.compile(r"^(\S[^\n]*)\n  \S", re.MULTILINE)
_MOST_QUOTED = 12

Blocks = list[Sequence[Part]]


@dataclass(frozen=True, slots=True)
class _ToolCall:
    input: Mapping[str, Any]
    text: str
    is_error: bool


class DemoProvider:
    """`delay` is the pause before each delta, in seconds."""

    name = "demo"

    def __init__(self, delay: float = 0.015) -> None:
        self._delay = delay

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        for parts in message_of(*_blocks(request)):
            if self._delay and isinstance(parts[0], BlockText):
                await asyncio.sleep(self._delay)
            yield parts


def _blocks(request: ModelRequest) -> Blocks:
    question, since = _question(request.messages)
    offered = {tool.name for tool in request.tools} if request.may_use_tools else set()
    calls = _calls(since)
    long_words = dict.fromkeys(word.lower() for word in re.findall(r"\w{4,}", question))
    words = [word for word in long_words if not _COMMON.fullmatch(word) and not _LISTING.fullmatch(word)][:5]
    if not calls:
        return _first_round(question, words, offered)
    search = calls.get("doc_search")
    best_hit = _HIT.search(search.text) if search and not search.is_error else None
    path = best_hit[1] if best_hit else None
    if path is not None and "doc_view" in offered and "doc_view" not in calls:
        return [
            thinking(*_pieces(f"The best match is {path}. I read it before I say anything about it.")),
            _call("doc_view", {"path": path}),
        ]
    return [text(*_pieces(_report(calls, words, path)))]


def _question(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Returns the last user message with text, and the messages behind it."""
    for place in range(len(messages) - 1, -1, -1):
        texts = [block.text for block in messages[place].blocks if block.type == TEXT and block.text != GO_ON]
        if messages[place].role == "user" and texts:
            return texts[-1], messages[place + 1 :]
    return "", messages


def _calls(since: Sequence[Message]) -> dict[str, _ToolCall]:
    """Returns the last call of each tool that has a result, by the name of the tool."""
    blocks = [block for message in since for block in message.blocks]
    results = {block.tool_use_id: block for block in blocks if block.type == TOOL_RESULT}
    return {
        call.name or "": _ToolCall(msgspec.json.decode(call.text or "{}"), result.text, result.is_error)
        for call in blocks
        if call.is_call and (result := results.get(call.tool_use_id))
    }


def _first_round(question: str, words: Sequence[str], offered: set[str]) -> Blocks:
    calls = []
    if "doc_search" in offered and words:
        calls.append(_call("doc_search", {"query": " ".join(words), "limit": 3}))
    if "doc_tree" in offered and (not calls or _LISTING.search(question)):
        calls.append(_call("doc_tree", {}))
    if not calls:
        plan = "There is no document tool that I could use, so all I can do is say what I am."
        answer = f"You said: “{_short(question)}”. With the document tools switched on I would look for it there."
        return [thinking(*_pieces(plan)), text(*_pieces(_INTRODUCTION + answer))]
    looked_for = "for " + ", ".join(f"“{word}”" for word in words) + " " if words else ""
    plan = f"The question is “{_short(question)}”. I know nothing myself, so I look {looked_for}in the library."
    return [
        thinking(*_pieces(plan)),
        text(*_pieces(f"{_INTRODUCTION}But the tools are real. I look {looked_for}in your documents.")),
        *calls,
    ]


def _report(calls: Mapping[str, _ToolCall], words: Sequence[str], path: str | None) -> str:
    view, tree, search = (calls.get(name) for name in ("doc_view", "doc_tree", "doc_search"))
    if failed := [name for name, call in calls.items() if call.is_error]:
        return f"{failed[0]} failed, and this is what it said:\n\n{_quoted(calls[failed[0]].text)}"
    listed = [f"This is what the library holds:\n\n```\n{tree.text}\n```"] if tree else []
    if view:
        found = f"I found this in **{view.input.get('path')}**:\n\n{_quoted(_lines_about(view.text, words))}"
        return "\n\n".join([*listed, found, "That is as far as a script can go."])
    if path is not None and search:
        return "\n\n".join([*listed, f"The search names **{path}** first:\n\n{_quoted(search.text)}"])
    if tree:
        return "\n\n".join([*listed, "Ask me about something in it."])
    return search.text if search else "The tools I called are none that I know how to read."


def _lines_about(excerpt: str, words: Sequence[str]) -> str:
    """Returns the lines around the one with the most keywords, without their line numbers."""
    lines = [line.partition("\t")[2] for line in excerpt.splitlines() if "\t" in line] or excerpt.splitlines()
    best = max(range(len(lines)), key=lambda place: sum(word in lines[place].lower() for word in words), default=0)
    start = max(0, best - 2)
    return "\n".join(lines[start : start + _MOST_QUOTED]).strip()


def _call(name: str, input: Mapping[str, Any]) -> list[Part]:
    return tool_use(name, input, f"toolu_demo_{uuid4().hex}")


def _pieces(words: str) -> Iterator[str]:
    yield from re.findall(r"\S+\s*", words)


def _quoted(words: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in words.splitlines()[:_MOST_QUOTED])


def _short(question: str) -> str:
    line = " ".join(question.split())
    return line if len(line) <= 80 else f"{line[:79]}…"

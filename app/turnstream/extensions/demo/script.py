"""The script of the demo. It executes the commands in a message; without commands, it calls the real tools of the
library.

The next step of the script depends only on the request: on the tools called since the last user message, and on their
results.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from turnstream.domain.kinds import TEXT, TOOL_RESULT
from turnstream.extensions.demo.commands import DemoCommands, Failure, ToolCommand, commands_of
from turnstream.llm.conversation.messages import (
    GIVEN_UP,
    GO_ON,
    GO_ON_FROM_BEGUN,
    NO_ROUND_LEFT,
    ONE_ROUND_LEFT,
    REPORTED,
    ROUNDS_LEFT,
)
from turnstream.llm.provider import BlockText, Message, ModelRequest, Part
from turnstream.scripted import text, thinking, tool_use

_INTRODUCTION = (
    "This is a scripted demo, no model is answering: set ANTHROPIC_API_KEY for that. It obeys commands: `/help` lists"
    " them. "
)
_COMMON = re.compile(
    "about|also|could|does|find|from|give|have|hello|help|into|know|like|look|more|please|show|some|tell|than|thank|that|"
    "their|them|then|there|they|this|want|were|what|when|where|which|will|with|would|your"
)
_LISTING = re.compile(r"\b(list|tree|files?|folders?|documents?|library|everything|what is there)\b", re.IGNORECASE)
_HIT = re.compile(r"^(\S[^\n]*)\n  \S", re.MULTILINE)
_REPORTED = REPORTED.partition("{")[0]
_MOST_QUOTED = 12
# Most characters that are read of a question without commands, and of a result: a search through megabytes would block
# all other threads.
_MOST_READ = 10_000

Blocks = list[Sequence[Part]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request. The first `times` model calls of the turn fail with `failure`. If `times` is None, all
    calls fail with it.
    """

    blocks: Blocks
    failure: Failure | None = None
    times: int | None = None

    @property
    def tokens(self) -> int:
        """Estimates how many tokens a model would count."""
        return sum(len(_words_of(block)) for block in self.blocks) // 4 + 1


@dataclass(frozen=True, slots=True)
class _ToolCall:
    name: str
    input: str
    text: str
    is_error: bool


def answer_of(request: ModelRequest) -> Answer:
    if reports := _reports(request.messages[-1:]):
        said = [f"A call in the background returned:\n\n{_quoted(each)}" for each in reports]
        return Answer([text(*_pieces("\n\n".join(said)))])
    question, since = _question(request.messages)
    calls = _calls(since)
    if commands := commands_of(question):
        blocks = _obey(commands, calls, request.may_use_tools)
        return Answer(_behind(since, blocks), commands.failure, commands.times)
    offered = {tool.name for tool in request.tools} if request.may_use_tools else set()
    return Answer(_behind(since, _search(question[:_MOST_READ], {call.name: call for call in calls}, offered)))


def _reports(last: Sequence[Message]) -> list[str]:
    """Returns the reports of background calls that are in the `last` message."""
    texts = [block.text for message in last for block in message.blocks if block.type == TEXT]
    return [each.partition("\n\n")[2] for each in texts if each.startswith(_REPORTED)]


# --- commands --------------------------------------------------------------------------------------------------------


def _obey(commands: DemoCommands, calls: Sequence[_ToolCall], may_use_tools: bool) -> Blocks:
    if commands.mistake:
        return [text(*_pieces(f"{commands.mistake} `/help` lists all commands."))]
    thought = [thinking(*_pieces(commands.thought))] if commands.thought and not calls else []
    if may_use_tools and len(calls) < len(commands.calls):
        made = commands.calls if commands.parallel else commands.calls[len(calls) : len(calls) + 1]
        return [*thought, *(_call(call) for call in made)]
    if commands.said is not None:
        return [*thought, text(*_pieces(commands.said))]
    if commands.words:
        return [*thought, text(*(f"{number} " for number in range(1, commands.words + 1)))]
    results = [f"{call.name} {'failed' if call.is_error else 'returned'}:\n\n{_quoted(call.text)}" for call in calls]
    return [*thought, text(*_pieces("\n\n".join(results) or "I did as I was asked."))]


# --- without commands ------------------------------------------------------------------------------------------------


def _search(question: str, calls: Mapping[str, _ToolCall], offered: set[str]) -> Blocks:
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
            _library_call("doc_view", {"path": path}),
        ]
    return [text(*_pieces(_report(calls, words, path)))]


def _question(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Returns the last user message that has text, and the messages after it."""
    for place in range(len(messages) - 1, -1, -1):
        texts = [block.text for block in messages[place].blocks if block.type == TEXT and not _is_added(block.text)]
        if messages[place].role == "user" and texts:
            return texts[-1], messages[place + 1 :]
    return "", messages


def _behind(since: Sequence[Message], blocks: Blocks) -> Blocks:
    """Returns the answer without the part that an interrupted reply has already written, if the server requested to
    continue it.
    """
    kept: list[str] = []
    for message in reversed(since):
        texts = [block.text for block in message.blocks if block.type == TEXT]
        if message.role == "assistant":
            kept.insert(0, "".join(texts))
        elif texts != [GO_ON]:
            break
    if not since or since[-1].role == "assistant" or not (begun := "".join(kept)):
        return blocks
    place = next((place for place, block in enumerate(blocks) if _words_of(block).startswith(begun)), None)
    return blocks if place is None else [text(*_pieces(_words_of(blocks[place])[len(begun) :])), *blocks[place + 1 :]]


def _words_of(block: Sequence[Part]) -> str:
    return "".join(part.text for part in block if isinstance(part, BlockText))


def _calls(since: Sequence[Message]) -> Sequence[_ToolCall]:
    """Returns the calls that have a result, in their order."""
    blocks = [block for message in since for block in message.blocks]
    results = {block.tool_use_id: block for block in blocks if block.type == TOOL_RESULT}
    return [
        _ToolCall(call.name or "", call.text or "{}", result.text[:_MOST_READ], result.is_error)
        for call in blocks
        if call.is_call and (result := results.get(call.tool_use_id))
    ]


def _first_round(question: str, words: Sequence[str], offered: set[str]) -> Blocks:
    calls = []
    if "doc_search" in offered and words:
        calls.append(_library_call("doc_search", {"query": " ".join(words), "limit": 3}))
    if "doc_tree" in offered and (not calls or _LISTING.search(question)):
        calls.append(_library_call("doc_tree", {}))
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
        seen = msgspec.json.decode(view.input).get("path")
        found = f"I found this in **{seen}**:\n\n{_quoted(_lines_about(view.text, words))}"
        return "\n\n".join([*listed, found, "That is as far as a script can go."])
    if path is not None and search:
        return "\n\n".join([*listed, f"The search names **{path}** first:\n\n{_quoted(search.text)}"])
    if tree:
        return "\n\n".join([*listed, "Ask me about something in it."])
    return search.text if search else "The tools I called are none that I know how to read."


def _lines_about(excerpt: str, words: Sequence[str]) -> str:
    """Returns the lines around the line that has the most keywords. Their line numbers are removed."""
    lines = [line.partition("\t")[2] for line in excerpt.splitlines() if "\t" in line] or excerpt.splitlines()
    best = max(range(len(lines)), key=lambda place: sum(word in lines[place].lower() for word in words), default=0)
    start = max(0, best - 2)
    return "\n".join(lines[start : start + _MOST_QUOTED]).strip()


def _library_call(name: str, input: Mapping[str, Any]) -> list[Part]:
    return tool_use(name, input, f"toolu_demo_{uuid4().hex}")


def _call(command: ToolCommand) -> list[Part]:
    """Returns the call. Its input stays unchanged, even if it is not JSON."""
    opened, *_, closed = _library_call(command.name, {})
    return [opened, BlockText(0, command.input), closed]


def _pieces(words: str) -> Iterator[str]:
    return (piece[0] for piece in re.finditer(r"\s*\S+\s*", words))


def _quoted(words: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in words.splitlines()[:_MOST_QUOTED])


def _short(question: str) -> str:
    line = " ".join(question.split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def _is_added(text: str) -> bool:
    """Whether the server added this text in the role of the user."""
    named = (part.partition("{")[0] for part in (ROUNDS_LEFT, ONE_ROUND_LEFT, NO_ROUND_LEFT, REPORTED))
    return text in {GO_ON, GO_ON_FROM_BEGUN, GIVEN_UP} or text.startswith(tuple(named))

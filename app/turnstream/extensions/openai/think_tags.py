"""Separates thoughts in `<think>…</think>` from the answer that follows. Open models write them if their server does
not parse the tags.

The text between the tags becomes a thinking block, as it streams. The block has no signature, and is not sent back: the
model's chat template also omits thoughts.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from turnstream.domain.kinds import TEXT, THINKING
from turnstream.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, ModelRequest, Part, ProviderWrapper
from turnstream.llm.raw_json import to_json

_BEGIN, _END = "<think>", "</think>"
# before: no block yet · undecided: perhaps the start of a tag · thinking: between the tags · thought: after the end
# tag, no text yet · answering: in the text · over: in a later block
_State = Literal["before", "undecided", "thinking", "thought", "answering", "over"]
_SHELL = to_json({"type": THINKING, "thinking": ""})


class ThinkTagFilter(ProviderWrapper):
    """Wraps a provider whose model writes its thoughts in tags."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        tags = ThinkTags()
        async with aclosing(self.provider.stream(request)) as batches:
            async for batch in batches:
                if parts := tags.feed(batch):
                    yield parts
        if parts := tags.end():
            yield parts


class ThinkTags:
    """Parses one answer. Only its first block, if that is a text, can start with a thought."""

    def __init__(self) -> None:
        self._state: _State = "before"
        self._opened = BlockOpened(0, TEXT)
        self._answer_key = 0
        self._held = ""  # text that may be a part of a tag
        self._updates: list[BlockData] = []

    def feed(self, batch: Sequence[Part]) -> list[Part]:
        parts: list[Part] = []
        for part in batch:
            self._feed(part, parts)
        return parts

    def end(self) -> list[Part]:
        """Returns the held text at the end of the stream."""
        parts: list[Part] = []
        if self._state == "undecided":
            self._begin_answer(self._opened.key, parts)
        elif self._state == "thinking":
            self._think(self._held, parts)
        return parts

    def _feed(self, part: Part, parts: list[Part]) -> None:
        mine = self._state not in {"before", "over"} and getattr(part, "key", None) == self._opened.key
        match part:
            case BlockOpened(type=type) if self._state == "before":
                self._state, self._opened = ("undecided" if type == TEXT else "over"), part
                if type == TEXT:
                    self._feed_text(part.text, parts)
                else:
                    parts.append(part)
            case BlockText(text=text) if mine:
                self._feed_text(text, parts)
            case BlockData() if mine:
                if self._state == "answering":
                    parts.append(part._replace(key=self._answer_key))
                else:
                    self._updates.append(part)
            case BlockClosed() if mine:
                parts += self.end()
                if self._state == "thinking":
                    parts.append(BlockClosed(self._opened.key))
                elif self._state == "answering":
                    parts.append(BlockClosed(self._answer_key))
                self._state = "over"
            case _:
                parts.append(part)

    def _feed_text(self, text: str, parts: list[Part]) -> None:
        self._held += text
        if self._state == "undecided":
            begun = self._held.lstrip()
            if begun.startswith(_BEGIN):
                self._state, self._held = "thinking", begun.removeprefix(_BEGIN)
                parts.append(BlockOpened(self._opened.key, THINKING, _SHELL))
            elif not _BEGIN.startswith(begun):
                self._begin_answer(self._opened.key, parts)
        if self._state == "thinking":
            self._find_end(parts)
        if self._state == "thought" and self._held.strip():
            self._held = self._held.lstrip()
            self._begin_answer(-1 - self._opened.key, parts)  # a key that no provider uses
        elif self._state == "answering":
            parts.append(BlockText(self._answer_key, self._held))
            self._held = ""

    def _find_end(self, parts: list[Part]) -> None:
        thought, tag, after = self._held.partition(_END)
        if tag:
            self._think(thought, parts)
            self._state, self._held = "thought", after
            parts.append(BlockClosed(self._opened.key))
        else:
            # The tag may be split between two pieces of text, so a possible beginning of the tag is held back.
            kept = next((_END[:size] for size in range(len(_END) - 1, 0, -1) if thought.endswith(_END[:size])), "")
            self._think(thought.removesuffix(kept), parts)
            self._held = kept

    def _think(self, thought: str, parts: list[Part]) -> None:
        if thought:
            parts.append(BlockText(self._opened.key, thought))

    def _begin_answer(self, key: int, parts: list[Part]) -> None:
        self._state, self._answer_key = "answering", key
        parts.append(self._opened._replace(key=key, text=self._held))
        parts += [update._replace(key=key) for update in self._updates]
        self._held = ""

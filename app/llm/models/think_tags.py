"""Open models whose server does not part what they think from what they say write `<think>…</think>` before an answer.

What is between the tags becomes a thinking block, as it streams. It is not signed, so it does not go back: the model's
own template leaves it out as well.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from app.domain.kinds import TEXT, THINKING
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, ModelRequest, Part, ProviderWrapper
from app.llm.raw_json import to_json

_BEGIN, _END = "<think>", "</think>"
_State = Literal["before", "undecided", "thinking", "said", "answering", "over"]
_SHELL = to_json({"type": THINKING, "thinking": ""})


class ThinkTagFilter(ProviderWrapper):
    """A provider whose model tags its thoughts."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        tags = ThinkTags()
        async with aclosing(self.provider.stream(request)) as batches:
            async for parts in batches:
                if told := tags.feed(parts):
                    yield told
        if told := tags.end():
            yield told


class ThinkTags:
    """One answer, of which only the first text can begin with a thought."""

    def __init__(self) -> None:
        self._state: _State = "before"
        self._opened = BlockOpened(0, TEXT)
        self._shown = 0
        self._held = ""
        self._news: list[BlockData] = []

    def feed(self, parts: Sequence[Part]) -> list[Part]:
        told: list[Part] = []
        for part in parts:
            self._take(part, told)
        return told

    def end(self) -> list[Part]:
        """The stream is over: what was held back in the hope of more is told as it came."""
        told: list[Part] = []
        if self._state == "undecided":
            self._answer(self._opened.key, told)
        elif self._state == "thinking":
            self._think(self._held, told)
        return told

    def _take(self, part: Part, told: list[Part]) -> None:
        mine = self._state not in {"before", "over"} and getattr(part, "key", None) == self._opened.key
        match part:
            case BlockOpened(type=type) if self._state == "before":
                self._state, self._opened = ("undecided" if type == TEXT else "over"), part
                if type == TEXT:
                    self._read_event(part.text, told)
                else:
                    told.append(part)
            case BlockText(text=text) if mine:
                self._read_event(text, told)
            case BlockData() if mine:
                self._learn(part, told)
            case BlockClosed() if mine:
                self._close(told)
            case _:
                told.append(part)

    def _read_event(self, text: str, told: list[Part]) -> None:
        self._held += text
        if self._state == "undecided":
            self._look_for_begin(told)
        if self._state == "thinking":
            self._look_for_end(told)
        if self._state == "said" and self._held.strip():
            self._held = self._held.lstrip()
            self._answer(-1 - self._opened.key, told)  # a key that no provider uses
        elif self._state == "answering":
            self._say(told)

    def _look_for_begin(self, told: list[Part]) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_BEGIN):
            self._state, self._held = "thinking", begun.removeprefix(_BEGIN)
            told.append(BlockOpened(self._opened.key, THINKING, _SHELL))
        elif not _BEGIN.startswith(begun):
            self._answer(self._opened.key, told)

    def _look_for_end(self, told: list[Part]) -> None:
        thought, tag, after = self._held.partition(_END)
        if tag:
            self._think(thought, told)
            self._state, self._held = "said", after
            told.append(BlockClosed(self._opened.key))
        else:
            kept = next((_END[:size] for size in range(len(_END) - 1, 0, -1) if thought.endswith(_END[:size])), "")
            self._think(thought.removesuffix(kept), told)
            self._held = kept

    def _think(self, thought: str, told: list[Part]) -> None:
        if thought:
            told.append(BlockText(self._opened.key, thought))

    def _answer(self, key: int, told: list[Part]) -> None:
        """From here on it is text."""
        self._state, self._shown = "answering", key
        told.append(self._opened._replace(key=key, text=self._held))
        told += [news._replace(key=key) for news in self._news]
        self._held = ""

    def _say(self, told: list[Part]) -> None:
        told.append(BlockText(self._shown, self._held))
        self._held = ""

    def _learn(self, news: BlockData, told: list[Part]) -> None:
        if self._state == "answering":
            told.append(news._replace(key=self._shown))
        else:
            self._news.append(news)

    def _close(self, told: list[Part]) -> None:
        told += self.end()
        if self._state == "thinking":
            told.append(BlockClosed(self._opened.key))
        elif self._state == "answering":
            told.append(BlockClosed(self._shown))
        self._state = "over"

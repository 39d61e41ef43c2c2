"""Detects thoughts between tags, however the text is split into pieces."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from turnstream.domain.blocks import Block
from turnstream.extensions.openai.think_tags import ThinkTagFilter, ThinkTags
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageEnded,
    MessageStarted,
    ModelRequest,
    Part,
    count_tokens,
)
from turnstream.scripted import ScriptedProvider, message_of, text, thinking, tool_use

REQUEST = ModelRequest("qwen", ())


def parts_of(*blocks: Sequence[Part]) -> list[Part]:
    return [part for parts in message_of(*blocks) for part in parts]


def pieces(words: str, size: int) -> list[str]:
    return [words[place : place + size] for place in range(0, len(words), size)]


def texts(parts: Sequence[Part]) -> list[tuple[str, str]]:
    tags, accumulator = ThinkTags(), Accumulator(1, 1, 0)
    told = [part for one in parts for part in tags.feed([one])] + tags.end()
    changes = [*accumulator.feed(told), *accumulator.interrupt()]
    assert accumulator.unknown == []
    return [(change.type, change.text) for change in changes if isinstance(change, Block)]


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        ("<think>Hm.</think>Hi", [("thinking", "Hm."), ("text", "Hi")]),
        ("\n <think>\nHm.\n</think>\n\nHi\n", [("thinking", "\nHm.\n"), ("text", "Hi\n")]),
        ("<think>a < b </thin </think>Hi <think>x", [("thinking", "a < b </thin "), ("text", "Hi <think>x")]),
        ("<think></think>Hi", [("thinking", ""), ("text", "Hi")]),
        ("<think>Hm.</think> \n", [("thinking", "Hm.")]),
        ("<think>Hm.</thi", [("thinking", "Hm.</thi")]),
        ("Hi <think>Hm.</think>", [("text", "Hi <think>Hm.</think>")]),
        ("<thinking>Hm.", [("text", "<thinking>Hm.")]),
        ("<thi", [("text", "<thi")]),
        (" ", [("text", " ")]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("cut", [False, True])
def test_a_thought_at_the_beginning_of_an_answer_is_a_block_of_its_own(
    words: str, blocks: list[tuple[str, str]], size: int, cut: bool
) -> None:
    parts = parts_of(text(*pieces(words, size)))
    assert texts([part for part in parts if not (cut and isinstance(part, BlockClosed | MessageEnded))]) == blocks


def test_text_in_the_opening_of_a_block_counts() -> None:
    opened = BlockOpened(3, "text", None, "<think>a</think>b")
    assert texts([MessageStarted({}), opened, BlockText(3, "c"), BlockClosed(3)]) == [
        ("thinking", "a"),
        ("text", "bc"),
    ]


@pytest.mark.parametrize("first", [thinking("Hm."), tool_use("look", {}, "a")])
def test_only_the_first_block_is_looked_at(first: list[Part]) -> None:
    kinds = [kind for kind, _ in texts(parts_of(first, text("<think>Hm.</think>")))]
    assert kinds[1:] == ["text"]
    assert texts(parts_of(text("Hi"), text("<think>a"))) == [("text", "Hi"), ("text", "<think>a")]


def test_sources_stay_with_the_answer() -> None:
    tags = ThinkTags()
    told: list[Part] = []
    news = BlockData(0, "annotations", {"n": 1}, append=True)
    for part in (
        BlockOpened(0, "text"),
        BlockText(0, "<think>a</think>"),
        news,
        BlockText(0, "b"),
        news,
        BlockClosed(0),
    ):
        told += tags.feed([part])
    assert told[3:] == [
        BlockOpened(-1, "text", None, "b"),
        news._replace(key=-1),
        news._replace(key=-1),
        BlockClosed(-1),
    ]


async def batches_of(provider: Any) -> list[Sequence[Part]]:
    return [parts async for parts in provider.stream(REQUEST)]


class Counted(ScriptedProvider):
    async def count(self, request: ModelRequest) -> int:
        return 7


async def test_only_a_model_with_think_tags_is_filtered() -> None:
    provider = Counted(lambda _: message_of(text("<think>a</think>", "b")))
    models = Models(
        [
            ProviderModels(
                provider,
                [Model("qwen", think_tags=True), Model("other"), Model("q", "qwen", think_tags=True)],
                without_tags=ThinkTagFilter,
            )
        ]
    )
    for name in ("qwen", "q"):
        asked = models.provider_for(name)
        assert asked.name == "scripted"
        assert await count_tokens(asked, REQUEST) == 7
        opened = [part.type for parts in await batches_of(asked) for part in parts if isinstance(part, BlockOpened)]
        assert opened == ["thinking", "text"]
    assert models.provider_for("other") is provider


class Cut:
    """A provider whose stream breaks off in the middle of a tag."""

    name = "cut"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        yield [BlockOpened(0, "text"), BlockText(0, "<thi")]


async def test_nothing_is_lost_where_a_stream_ends_in_the_middle_of_a_tag() -> None:
    assert await batches_of(ThinkTagFilter(Cut())) == [[BlockOpened(0, "text", None, "<thi")]]
    assert await count_tokens(ThinkTagFilter(Cut()), REQUEST) is None

"""The cache of warm paths: which paths a turn finds, which paths are evicted for others, and when paths expire."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.turns import HttpCall, OutputSpec, ToolSpec, Turn, TurnRequest
from turnstream.engine import warm_paths
from turnstream.engine.warm_paths import WarmPaths
from turnstream.kit.ids import new_id
from turnstream.llm.conversation.messages import KnownEntries

TURN = 3000 + 59  # approximate bytes of each turn below, whose text has ten characters


def path_of(turns: int, before: Sequence[Turn] = ()) -> list[Turn]:
    path, chat = [*before], before[0].chat_id if before else new_id()
    for _ in range(turns):
        parent = path[-1].id if path else None
        said = (Block(0, 0, 0, "text", "x" * 10),)
        path.append(Turn(new_id(), chat, parent, "assistant" if len(path) % 2 else "user", "complete", blocks=said))
    return path


def found(paths: WarmPaths, leaf: UUID) -> Sequence[Turn] | None:
    warm = paths.find(leaf)
    return None if warm is None else warm.turns


async def test_a_path_replaces_the_path_that_it_continues() -> None:
    paths, first = WarmPaths(4 * TURN), path_of(2)
    paths.keep(first, KnownEntries())
    assert found(paths, first[-1].id) == first
    second = path_of(2, first)
    paths.keep(second, entries := KnownEntries())
    assert (found(paths, first[-1].id), found(paths, second[-1].id)) == (None, second)
    kept = paths.find(second[-1].id)
    assert kept is not None
    assert kept.entries is entries
    assert found(paths, new_id()) is None


@pytest.mark.parametrize(
    "turn",
    [
        {"blocks": (Block(0, 0, 0, "text", "\N{SAILBOAT}" * 50_000),)},
        {"blocks": (Block(0, 0, 0, "tool_result", client_data="x" * 100_000),)},
        {"request": TurnRequest("m", system="x" * 100_000)},
        {"request": TurnRequest("m", params={"metadata": [{"words": "x" * 100_000}, 1.5, None]})},
        {"request": TurnRequest("m", labels={"of": "x" * 100_000})},
        {"request": TurnRequest("m", tools=(ToolSpec("look", "x" * 50_000, "x" * 50_000, client=True),))},
        {
            "request": TurnRequest(
                "m", tools=(ToolSpec("look", "", "", http=HttpCall("", headers={"a": "x" * 100_000})),)
            )
        },
        {"request": TurnRequest("m", output=OutputSpec("x" * 100_000))},
        {"request": TurnRequest("m", provider_tools=("x" * 100_000,))},
    ],
)
async def test_members_of_unlimited_length_are_counted_in_bytes(turn: Mapping[str, Any]) -> None:
    path = path_of(2)
    path[-1] = replace(path[-1], **turn)
    for most, is_kept in ((99_000, False), (220_000, True)):
        paths = WarmPaths(most)
        paths.keep(path, KnownEntries())
        assert (paths.find(path[-1].id) is not None) == is_kept


async def test_the_least_recently_used_path_is_evicted_and_an_oversized_one_is_not_kept() -> None:
    paths, chats = WarmPaths(4 * TURN), [path_of(2) for _ in range(3)]
    paths.keep(chats[0], KnownEntries())
    paths.keep(chats[1], KnownEntries())
    assert paths.find(chats[0][-1].id)
    paths.keep(chats[2], KnownEntries())
    assert [paths.find(path[-1].id) is not None for path in chats] == [True, False, True]
    longer = path_of(4, chats[0])
    paths.keep(longer, KnownEntries())
    assert paths.find(longer[-1].id) is None
    assert paths.find(chats[2][-1].id) is not None
    nothing = WarmPaths(0)
    nothing.keep(chats[0], KnownEntries())
    assert nothing.find(chats[0][-1].id) is None


async def test_a_path_that_nobody_uses_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_paths, "KEPT", 0.0)
    paths, path = WarmPaths(4 * TURN), path_of(2)
    paths.keep(path, KnownEntries())
    await asyncio.sleep(0.001)
    assert paths.find(path[-1].id) is None

"""For any stream of a provider and any schedule of readers, the turn that each reader assembles equals the rows."""

import asyncio
import copy
import json
import os
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

import pytest

from tests.integration.plays import Author, Play, Stage, playing
from tests.support.effort import FULL
from tests.support.harness import Asked, Harness, Replica, assert_is_whole
from turnstream.api.codec import block_json, degraded_json, error_json, to_json
from turnstream.api.events import frame
from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.cursor import Cursor
from turnstream.domain.degraded import degraded
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.turns import Limits, Turn
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.stream.reader import follow
from turnstream.tools.tool import tool

TURNS = int(os.environ.get("PROPERTY_TURNS", "96" if FULL else "32"))
AT_ONCE = 8
READERS = 4
OLD_CURSORS = 12

FRAME = re.compile(r"(?:id: (\d+-\d+-\d+)\n)?event: ([a-z_]+)\ndata: ([^\n]*)\n\n")
ENDS = {"turn_complete": "complete", "turn_cancelled": "cancelled", "turn_error": "error"}


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what} \U0001f6a2"


@tool()
async def explode() -> str:
    """Break."""
    raise ValueError


@dataclass
class Picture:
    """The turn that a client has assembled from bytes."""

    cursor: Cursor = field(default_factory=Cursor)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    resets: int = 0

    def take(self, data: bytes) -> None:
        """Takes bytes, which must be whole frames."""
        text = data.decode()
        assert FRAME.sub("", text) == ""
        for id, name, payload in FRAME.findall(text):
            self._take(id, name, json.loads(payload))

    def _take(self, id: str, name: str, data: dict[str, Any]) -> None:
        assert self.end is None, "nothing comes after the end"
        assert bool(id) == (name not in ("retry", "status", "tool_progress", "tool_output"))
        if not id:
            return
        cursor = Cursor.parse(id)
        assert cursor > self.cursor, "ids only grow"
        self.cursor = cursor
        match name:
            case "block_start":
                assert data["index"] == len(self.blocks)
                self.blocks.append({**data, "text": "", "open": True})
            case "block_delta":
                assert data["text"]
                assert data["index"] == len(self.blocks) - 1
                assert data["offset"] == len(self.blocks[-1]["text"])
                assert self.blocks[-1]["open"]
                self.blocks[-1]["text"] += data["text"]
            case "block_stop":
                assert self.blocks[-1].pop("open")
                assert data["index"] == len(self.blocks) - 1
                self.blocks[-1] |= data
            case "reset":
                assert data["index"] <= len(self.blocks)
                del self.blocks[data["index"] :]
                self.resets += 1
            case _ if name in ENDS:
                self.end = {"status": ENDS[name], **data}
            case _:
                assert name in ("turn_start", "round_start", "round_stop")

    def assert_shows(self, turn: Turn) -> None:
        assert self.blocks == [json.loads(to_json(block_json(block))) for block in turn.blocks]
        end = {"status": turn.status, "stop_reason": turn.stop_reason, "usage": turn.usage}
        error = {"error": error_json(turn.error)} if turn.error else {}
        # Three consecutive rounds may have called only `explode`.
        policies = {"degraded": list(map(degraded_json, degraded(turn)))} if degraded(turn) else {}
        assert self.end == json.loads(to_json(end | error | policies))


@dataclass
class Visitor:
    """A reader that changes between replicas, disconnects at random moments, and returns with any of its earlier
    cursors.
    """

    random: Random
    harness: Harness
    replicas: Sequence[Replica]
    asked: Asked
    pictures: list[Picture] = field(default_factory=lambda: [Picture()])

    async def visit(self) -> None:
        while self.pictures[-1].end is None:
            picture = self.random.choice(self.pictures) if self.random.random() < 0.3 else self.pictures[-1]
            patience = self.random.choice([0.0, 0.002, 0.01, None])
            try:
                async with asyncio.timeout(patience):
                    await self.read(copy.deepcopy(picture), self.random.choice([1, 2, 5, 1000]))
            except TimeoutError:
                continue

    async def read(self, picture: Picture, portions: int) -> Picture:
        """Reads so many portions from a picture on, with occasional pauses."""
        directory = self.random.choice(self.replicas).directory
        view = directory.view(await self._load())
        async with aclosing(follow(directory, view, self._load, picture.cursor, frame)) as frames:
            async for data in frames:
                picture.take(data)
                self.pictures.append(copy.deepcopy(picture))
                portions -= 1
                if portions == 0:
                    break
                for _ in range(self.random.choice([0, 0, 0, 1, 30])):
                    await asyncio.sleep(0)
        return picture

    async def return_with_old_cursors(self, most: int) -> None:
        """Reads the ended turn again with cursors of any age."""
        turn = await self._load()
        for picture in self.random.sample(self.pictures, min(most, len(self.pictures))):
            (await self.read(copy.deepcopy(picture), 1000)).assert_shows(turn)

    async def _load(self) -> Turn:
        return await self.harness.turn(self.asked)


@dataclass(frozen=True)
class World:
    """One provider and two replicas, with their faults."""

    stage: Stage
    harness: Harness
    replicas: Sequence[Replica]

    async def play(self, random: Random, model: str, *, disturbed: bool) -> list[Visitor]:
        """Runs one turn from its beginning to its end, with several readers."""
        self.stage.rehearse(model, Author(random).script())
        asked = await self.harness.ask(model=model, tools=[look, explode], limits=_limits(random))
        visitors = [Visitor(Random(random.random()), self.harness, self.replicas, asked) for _ in range(READERS)]
        random.choice(self.replicas).worker.wake()
        async with asyncio.TaskGroup() as group:
            for visitor in visitors:
                group.create_task(visitor.visit())
            if random.random() < 0.15:
                group.create_task(self._cancel(random, asked))
        turn = await self.harness.turn(asked)
        assert_is_whole(turn)
        if not disturbed:
            _assert_says_what_the_provider_said(turn, self.stage.played[model])
        for visitor in visitors:
            visitor.pictures[-1].assert_shows(turn)
            await visitor.return_with_old_cursors(OLD_CURSORS)
        return visitors

    async def _cancel(self, random: Random, asked: Asked) -> None:
        await asyncio.sleep(random.random() * 0.1)
        await random.choice(self.replicas).cancel(asked)

    async def disturb(self, random: Random) -> None:
        """Makes one replica declare the other replica dead and take over its turns."""
        await asyncio.sleep(random.random() * 0.1)
        taking, losing = random.sample(self.replicas, 2)
        await taking.queue.take_over([losing.queue.replica])
        taking.worker.wake()


@pytest.mark.timeout(420)
async def test_every_reader_assembles_the_stored_turn(harness: Harness) -> None:
    seed = int(os.environ.get("PROPERTY_SEED") or SystemRandom().randrange(10**9))
    random = Random(seed)
    visitors: list[Visitor] = []
    tools = [look, explode]
    async with (
        playing() as stage,
        AnthropicProvider("key", stage.url) as provider,
        harness.replica(provider, tools, listens=True) as here,
        harness.replica(provider, tools, listens=True) as there,
    ):
        world = World(stage, harness, [here, there])
        for number in range(0, 8 * TURNS, AT_ONCE):
            if number >= TURNS and _is_varied(stage, visitors):
                break
            try:
                visitors += await _act(world, random, [f"claude-{one}" for one in range(number, number + AT_ONCE)])
                for visitor in random.sample(visitors, READERS):
                    await visitor.return_with_old_cursors(1)
            except BaseException as error:
                error.add_note(f"PROPERTY_SEED={seed} repeats the streams, not the schedule")
                raise
    assert stage.problems == []
    assert _is_varied(stage, visitors)


def _is_varied(stage: Stage, visitors: Sequence[Visitor]) -> bool:
    """Checks that every way in which a reply can end has happened, and that some reader has received a reset."""
    endings = {play.ending for plays in stage.played.values() for play in plays}
    return endings >= {"whole", "cut", "error", "unfinished"} and any(
        picture.resets for visitor in visitors for picture in visitor.pictures
    )


async def _act(world: World, random: Random, models: Sequence[str]) -> list[Visitor]:
    """Runs some turns at once."""
    disturbed = random.random() < 0.3
    async with asyncio.TaskGroup() as group:
        plays = [group.create_task(world.play(Random(random.random()), model, disturbed=disturbed)) for model in models]
        if disturbed:
            group.create_task(world.disturb(random))
    return [visitor for play in plays for visitor in play.result()]


def _limits(random: Random) -> Limits:
    return Limits(
        max_rounds=random.choice([0, 1, 3, 5]),
        on_max_rounds=random.choice(["answer", "stop"]),
        recovery=random.choice(["retry", "continue"]),
        max_recoveries=random.choice([0, 2, 5]),
        hard_max_rounds=random.choice([None, 4]),
        max_calls=random.choice([None, 3]),
        tell_rounds=random.choice([False, True]),
    )


def _assert_says_what_the_provider_said(turn: Turn, plays: Sequence[Play]) -> None:
    """Checks that every complete reply of the provider is a sealed round with the same content, and vice versa."""
    not_whole = ("interrupted", "error", "cancelled", ASSEMBLED)
    rounds = [round for round in turn.rounds if round.sealed and round.stop_reason not in not_whole]
    whole = [play for play in plays if play.ending == "whole"]
    if turn.status == "cancelled":
        whole = whole[: len(rounds)]
    assert [round.stop_reason for round in rounds] == [play.stop_reason for play in whole]
    for round, play in zip(rounds, whole, strict=True):
        mine = [block for block in turn.blocks if block.round == round.number and block.type != TOOL_RESULT]
        kept = [(block.type, block.text) for block in mine]
        if kept != play.said:  # drops text that repeats the interrupted text, perhaps the whole first text
            assert any(each.stop_reason == "interrupted" and each.number == round.number - 1 for each in turn.rounds)
            place = [type for type, _ in play.said].index("text")
            goes_on = [rest for rest in kept[place : place + 1] if len(kept) == len(play.said)]
            assert [*kept[:place], *kept[place + len(goes_on) :]] == [*play.said[:place], *play.said[place + 1 :]]
            assert all(play.said[place][1].endswith(text) for _, text in goes_on)

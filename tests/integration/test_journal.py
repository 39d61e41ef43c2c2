"""The journal in Postgres: what a crash of either side leaves of the text of an open block."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.domain.blocks import Block
from app.domain.errors import StorageUnavailable
from app.domain.events import BlockStart
from app.domain.kinds import TEXT
from app.domain.turns import Turn
from app.engine.upkeep.journal_writer import JournalWriter
from app.kit.ids import new_id
from app.storage.database import Database, Row, Statement
from app.storage.runs.journal import Journal, JournalEntry
from app.storage.runs.queue import Queue
from app.storage.runs.snapshots import Snapshots
from app.stream.directory import Directory
from app.stream.live import LiveView
from app.stream.mirror import Mirror
from tests.integration.records import begun, records_of
from tests.support.harness import OWNER, Asked, Harness

EMPTY = Statement("TRUNCATE open_text")
COUNT = Statement("SELECT count(*) FROM open_text WHERE attempt > 0")


class Desk:
    """A turn that is claimed, with a block that is open, and the journaling of its owner."""

    def __init__(self, harness: Harness, asked: Asked, turn: Turn) -> None:
        self.harness = harness
        self.asked = asked
        self.view = LiveView(turn)
        self.view.open_block(BlockStart(turn.attempt, 0, 1, TEXT, None, None))
        self.directory = Directory()
        self.journal = Journal(harness.database)
        self.journaling = JournalWriter(self.journal, self.directory, 60)

    async def journaled(self) -> str | None:
        block = await self.journal.open_block(await self.harness.turn(self.asked))
        return block.text if block else None

    async def write(self, *texts: str) -> None:
        """Each in a tick of its own."""
        for text in texts:
            self.view.append(text)
            await self.journaling.flush()

    async def count(self) -> int:
        row = await self.harness.database.row(COUNT)
        assert row is not None
        return int(row["count"])


@pytest.fixture
async def desk(harness: Harness) -> Desk:
    asked = await harness.ask()
    desk = Desk(harness, asked, await begun(harness, asked))
    await desk.journal.begin()
    return desk


async def test_text_is_journaled_piece_by_piece_and_only_once(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.journaling.flush()
        assert await desk.journaled() == ""
        await desk.write("Ahoy", ", ", "you.")
        await desk.journaling.flush()
    assert (await desk.journaled(), await desk.count()) == ("Ahoy, you.", 3)


async def test_a_journal_that_a_crash_of_postgres_has_emptied_is_written_anew(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        await desk.write("you")
        await desk.write(".")
    assert await desk.journaled() == "Ahoy, you."


async def test_a_crash_of_postgres_is_seen_for_all_whichever_text_it_was_noticed_by(desk: Desk) -> None:
    asked = await desk.harness.ask()
    other = Desk(desk.harness, asked, await begun(desk.harness, asked))
    with desk.directory.host(desk.view, OWNER), desk.directory.host(other.view, OWNER):
        other.view.append("Still ")
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        await desk.write("you.")
        other.view.append("here.")
        await desk.journaling.flush()
    assert (await desk.journaled(), await other.journaled()) == ("Ahoy, you.", "Still here.")


async def test_a_journal_that_was_emptied_is_written_anew_though_postgres_goes_away_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Journal.begin

    async def lose_the_answer(journal: Journal) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "row", _then_away(Database.row))
            return await begin(journal)

    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "begin", lose_the_answer)
            await desk.write("you")
        await desk.write(".")
        await desk.journaling.flush()
    assert await desk.journaled() == "Ahoy, you."


def _then_away(row: Callable[..., Awaitable[Row | None]]) -> Callable[..., Awaitable[Row | None]]:
    async def lose(*args: Any, **values: Any) -> Row | None:
        await row(*args, **values)
        raise StorageUnavailable("the connection was lost")

    return lose


async def test_text_whose_fate_is_not_known_is_written_anew(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    async def lose_the_answer(journal: Journal, pieces: Sequence[JournalEntry]) -> int:
        await append(journal, pieces)
        raise StorageUnavailable("the connection was lost")

    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", lose_the_answer)
            await desk.write("you")
        await desk.write(".", " Hm?")
    assert await desk.journaled() == "Ahoy, you. Hm?"


@pytest.mark.parametrize("stored", [True, False])
async def test_who_reads_elsewhere_reads_on_behind_text_whose_fate_was_not_known(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    append, elsewhere = Journal.append, Directory()
    mirror = Mirror(Snapshots(desk.harness.database), elsewhere, 1)
    view = elsewhere.view(await desk.harness.turn(desk.asked))

    async def lose_the_answer(journal: Journal, pieces: Sequence[JournalEntry]) -> int:
        if stored:
            await append(journal, pieces)
        raise StorageUnavailable("the connection was lost")

    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        await mirror.look()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", lose_the_answer)
            await desk.write("you")
        await desk.write(".", " Hm?")
        await mirror.look()
    assert view.open_text(0) == "Ahoy, you. Hm?"


async def test_an_owner_that_lost_its_claim_journals_nothing(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
        await Queue(desk.harness.database, new_id(), "elsewhere", 1).take_over([])
        await desk.write(", you.")
        assert (await desk.journaled(), await desk.count()) == ("Ahoy", 1)
        await Queue(desk.harness.database, new_id(), "elsewhere", 1).claim(1)
        await desk.write(" I am not dead.")
    assert (await desk.journaled(), await desk.count()) == ("Ahoy", 1)


async def test_a_piece_that_comes_after_its_block_was_closed_is_nothing(desk: Desk) -> None:
    turn = desk.view.turn
    block = Block(0, 1, 1, TEXT, "Ahoy")
    records = await records_of(desk.harness, turn)
    await records.close_blocks([block])
    await desk.journal.append([JournalEntry(turn.id, replace(block, text=""), 4, ", ")])
    await desk.journal.append([JournalEntry(turn.id, replace(block, text=""), 0, "Ahoy")])
    assert await desk.journaled() is None
    await desk.journal.append([JournalEntry(turn.id, Block(1, 1, 1, TEXT), 0, "Next")])
    assert await desk.journaled() == "Next"


async def test_what_was_left_behind_is_swept_up_and_what_is_open_stays(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
    await desk.journal.sweep()
    assert await desk.count() == 1
    records = await records_of(desk.harness, desk.view.turn)
    await records.end(replace(desk.view.turn, status="complete", stop_reason="end_turn"))
    late = JournalEntry(desk.asked.turn, Block(0, 1, 1, TEXT), 0, "Ahoy")
    assert await desk.journal.append([late]) == 0
    await desk.harness.database.row(
        Statement("INSERT INTO open_text VALUES (:turn, 1, 0, 0, 1, 'text', NULL, NULL, 'Ahoy')"), turn=desk.asked.turn
    )
    await desk.journal.sweep()
    assert await desk.count() == 0


async def test_a_release_hands_on_more_than_one_tick_holds(desk: Desk) -> None:
    long = "ahoy " * 20_000
    records = await records_of(desk.harness, desk.view.turn)
    desk.view.append(long)
    await records.release(desk.view.block_being_written())
    assert await desk.journaled() == long
    assert (await desk.harness.turn(desk.asked)).recoveries == 0

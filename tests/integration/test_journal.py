"""The journal in Postgres: the text of an open block after a crash of the server or of Postgres."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tests.integration.records import begun, claimed, first_round, records_of
from tests.support.harness import OWNER, Asked, Harness
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.errors import StorageUnavailable
from turnstream.domain.events import BlockStart
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Turn
from turnstream.engine.upkeep import journal_writer
from turnstream.engine.upkeep.journal_writer import JournalWriter
from turnstream.kit.ids import new_id
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.runs.journal import GET_NEW_TEXT, Journal, JournalEntry, OpenTexts
from turnstream.storage.runs.queue import Queue
from turnstream.storage.runs.record import begin_rounds
from turnstream.storage.runs.snapshots import MirrorPosition, Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.mirror import Mirror

EMPTY = Statement("TRUNCATE journal_ticks")
TICKS = Statement("SELECT pieces FROM journal_ticks WHERE replica = :replica ORDER BY tick")
STORED = Statement("SELECT text FROM open_text WHERE turn_id = :turn ORDER BY start")


class Desk:
    """A claimed turn with an open block, and the journaling of its replica."""

    def __init__(self, harness: Harness, asked: Asked, turn: Turn, replica: UUID) -> None:
        self.harness = harness
        self.asked = asked
        self.view = LiveView(turn)
        self.view.open_block(BlockStart(turn.attempt, 0, 1, TEXT, None, None))
        self.directory = Directory()
        self.replica = replica
        self.journaling = JournalWriter(Journal(harness.database, replica), self.directory, 60)

    @classmethod
    async def of(cls, harness: Harness, replica: UUID) -> "Desk":
        asked = await harness.ask()
        return cls(harness, asked, await begun(harness, asked, replica), replica)

    async def journaled(self) -> str | None:
        """Returns the open block's text as the journal has it, with or without a checkpoint."""
        turn = await self.harness.turn(self.asked)
        found = await Snapshots(self.harness.database).take({turn.id: MirrorPosition(turn)})
        block = found[turn.id].open_block
        return block.text if block else None

    async def write(self, *texts: str) -> None:
        """Writes each text in a separate tick."""
        for text in texts:
            self.view.append(text)
            await self.flush()

    async def flush(self) -> None:
        """Does one tick, and a checkpoint if it is due."""
        if await self.journaling.tick():
            await self.journaling.checkpoint()

    async def ticks(self) -> list[str]:
        return [row["pieces"] for row in await self.harness.database.rows(TICKS, replica=self.replica)]

    async def stored(self) -> list[str]:
        return [row["text"] for row in await self.harness.database.rows(STORED, turn=self.asked.turn)]

    async def recalled(self) -> str | None:
        """Returns the text with which the next claim begins."""
        await Queue(self.harness.database, new_id(), "elsewhere", 1).take_over([self.replica])
        block = await OpenTexts(self.harness.database).open_block(await self.harness.turn(self.asked))
        return block.text if block else None


@pytest.fixture
async def desk(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk that makes no checkpoints."""
    monkeypatch.setattr(journal_writer, "CHECKPOINT", 3600.0)
    return await Desk.of(harness, new_id())


@pytest.fixture
def always_a_checkpoint(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a checkpoint in every tick."""
    monkeypatch.setattr(journal_writer, "CHECKPOINT", 0.0)


async def test_text_is_journaled_piece_by_piece_and_only_once(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.flush()
        assert await desk.journaled() == ""
        await desk.write("Ahoy", ", ", "you.")
        await desk.flush()
    assert (await desk.journaled(), len(await desk.ticks())) == ("Ahoy, you.", 4)
    assert await desk.recalled() == "Ahoy, you."
    assert await desk.ticks() == []


async def test_one_tick_has_the_text_of_all_turns(desk: Desk) -> None:
    other = await Desk.of(desk.harness, desk.replica)
    with desk.directory.host(desk.view, OWNER), desk.directory.host(other.view, OWNER):
        other.view.append("Still here.")
        await desk.write("Ahoy")
    assert (await desk.journaled(), await other.journaled()) == ("Ahoy", "Still here.")
    assert (len(await desk.ticks()), await desk.stored(), await other.stored()) == (1, [], [])


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_a_checkpoint_survives_a_crash_of_postgres_and_of_the_owner(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        journal_writer.CHECKPOINT = 3600.0
        await desk.write("you.")
    await desk.harness.database.row(EMPTY)
    assert await desk.recalled() == "Ahoy, "


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_the_log_keeps_text_newer_than_the_last_checkpoint_and_is_empty_at_the_end(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("One", "Two", "Three")
        (last,) = await desk.ticks()
        assert "Three" in last
        assert await desk.stored() == ["One", "Two", "Three"]
        for _ in range(3):
            await desk.flush()
        assert await desk.ticks() == ["[]"]
        await desk.write(".")
    assert await desk.journaled() == "OneTwoThree."


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_a_checkpoint_has_no_block_that_was_closed_meanwhile(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    async def close_the_block(journal: Journal, entries: Sequence[JournalEntry]) -> bool:
        is_whole = await append(journal, entries)
        desk.view.close_blocks([Block(0, 1, 1, TEXT, "Ahoy")])
        return is_whole

    monkeypatch.setattr(Journal, "append", close_the_block)
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
    assert await desk.stored() == []


async def test_a_takeover_stores_the_text_missing_in_the_checkpoint(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
        monkeypatch.setattr(journal_writer, "CHECKPOINT", 0.0)
        await desk.write(", ")
        monkeypatch.setattr(journal_writer, "CHECKPOINT", 3600.0)
        await desk.write("you", ".")
        assert await desk.stored() == ["Ahoy, "]
    assert await desk.recalled() == "Ahoy, you."


async def test_a_journal_emptied_by_a_crash_of_postgres_is_written_again(desk: Desk) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        await desk.write("you")
        await desk.write(".")
    assert await desk.journaled() == "Ahoy, you."


async def test_a_crash_of_postgres_is_seen_for_all_whichever_text_it_was_noticed_by(desk: Desk) -> None:
    other = await Desk.of(desk.harness, desk.replica)
    with desk.directory.host(desk.view, OWNER), desk.directory.host(other.view, OWNER):
        other.view.append("Still ")
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        await desk.write("you.")
        other.view.append("here.")
        await desk.flush()
    assert (await desk.journaled(), await other.journaled()) == ("Ahoy, you.", "Still here.")


async def test_an_emptied_journal_is_written_again_despite_another_outage_of_postgres(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        await desk.harness.database.row(EMPTY)
        with monkeypatch.context() as patch:
            patch.setattr(Database, "row", _then_away(Database.row))
            await desk.write("you")
        await desk.write(".")
        await desk.flush()
    assert await desk.journaled() == "Ahoy, you."


def _then_away(row: Callable[..., Awaitable[Row | None]]) -> Callable[..., Awaitable[Row | None]]:
    async def lose(*args: Any, **values: Any) -> Row | None:
        await row(*args, **values)
        raise StorageUnavailable("the connection was lost")

    return lose


async def test_text_with_an_unknown_write_result_is_written_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    async def lose_the_answer(journal: Journal, entries: Sequence[JournalEntry]) -> bool:
        await append(journal, entries)
        raise StorageUnavailable("the connection was lost")

    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(Journal, "append", lose_the_answer)
            await desk.write("y", "o", "u")
        await desk.write(".", " Hm?")
    assert await desk.journaled() == "Ahoy, you. Hm?"
    assert await desk.recalled() == "Ahoy, you. Hm?"
    assert [line["event"] for line in lines] == ["journal.waits"], "one line in ten seconds"


@pytest.mark.parametrize("stored", [True, False])
async def test_readers_elsewhere_continue_behind_text_with_an_unknown_write_result(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    append, elsewhere = Journal.append, Directory()
    mirror = Mirror(Snapshots(desk.harness.database), elsewhere, 1)
    view = elsewhere.view(await desk.harness.turn(desk.asked))

    async def lose_the_answer(journal: Journal, entries: Sequence[JournalEntry]) -> bool:
        if stored:
            await append(journal, entries)
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


async def test_an_owner_that_lost_its_claim_journals_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Queue(desk.harness.database, new_id(), "elsewhere", 1)
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
        assert await desk.recalled() == "Ahoy"
        monkeypatch.setattr(journal_writer, "CHECKPOINT", 0.0)
        await desk.write(", you.")
        assert await desk.journaled() == "Ahoy"
        await elsewhere.claim(1)
        await desk.write(" I am not dead.")
    assert (await desk.journaled(), await desk.stored()) == ("Ahoy", ["Ahoy"])
    assert await desk.ticks() != []
    await elsewhere.renew_lease(60)
    await elsewhere.take_over([])
    assert await desk.ticks() == []


async def test_a_piece_that_comes_after_its_block_was_closed_is_nothing(desk: Desk) -> None:
    texts = OpenTexts(desk.harness.database)
    first = JournalEntry(desk.asked.turn, 1, 0, 0, 1, TEXT, "Ahoy")
    await (await records_of(desk.harness, desk.view.turn)).close_blocks([Block(0, 1, 1, TEXT, "Ahoy")])
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
    await texts.store([first, JournalEntry(desk.asked.turn, 1, 0, 4, 1, TEXT, ", ")])
    assert await desk.journaled() is None
    await texts.store([JournalEntry(desk.asked.turn, 1, 1, 0, 1, TEXT, "Next")])
    assert await desk.journaled() == "Next"


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_leftover_rows_are_swept_and_open_ones_stay(desk: Desk) -> None:
    texts = OpenTexts(desk.harness.database)
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
    await swept(texts.sweep())
    assert await desk.stored() == ["Ahoy"]
    records = await records_of(desk.harness, desk.view.turn)
    await records.end(replace(desk.view.turn, status="complete", stop_reason="end_turn"))
    await texts.store([JournalEntry(desk.asked.turn, 1, 0, 0, 1, TEXT, "Ahoy")])
    assert await desk.stored() == []
    await desk.harness.database.row(
        Statement("INSERT INTO open_text VALUES (:turn, 1, 0, 0, 1, 'text', NULL, NULL, 'Ahoy')"), turn=desk.asked.turn
    )
    await swept(texts.sweep())
    assert await desk.stored() == []


async def test_a_release_hands_on_more_than_one_piece_holds(desk: Desk) -> None:
    long = "ahoy " * 40_000
    records = await records_of(desk.harness, desk.view.turn)
    with desk.directory.host(desk.view, OWNER):
        await desk.write(long, "")
        assert await desk.journaled() == long
    await records.release(desk.view.block_being_written())
    assert await desk.journaled() == long
    assert (await desk.harness.turn(desk.asked)).recoveries == 0


async def test_a_replica_that_leaves_deletes_its_log_unless_a_takeover_needs_it(desk: Desk) -> None:
    queue = Queue(desk.harness.database, desk.replica, "here", 1)
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy")
    await queue.leave()
    assert len(await desk.ticks()) == 1
    await (await records_of(desk.harness, desk.view.turn)).release(desk.view.block_being_written())
    await queue.leave()
    assert await desk.ticks() == []


class Elsewhere:
    """A mirror of the desk's turn on another replica. `has_read_stored` is true if the last look has read the
    checkpoint's text.
    """

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self._desk = desk
        self.directory = Directory()
        self.mirror = Mirror(Snapshots(desk.harness.database), self.directory, 1)
        self.view: LiveView | None = None
        self.has_read_stored = False
        rows = Transaction.rows

        async def watched(moment: Transaction, statement: Statement, **values: Any) -> Sequence[Row]:
            self.has_read_stored |= statement is GET_NEW_TEXT
            return await rows(moment, statement, **values)

        monkeypatch.setattr(Transaction, "rows", watched)

    async def look(self) -> str:
        self.has_read_stored = False
        self.view = self.view or self.directory.view(await self._desk.harness.turn(self._desk.asked))
        await self.mirror.look()
        return self.view.open_text(0)


@pytest.fixture
def elsewhere(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(desk, monkeypatch)


async def test_a_mirror_reads_the_log_on_and_the_stored_text_only_at_first(desk: Desk, elsewhere: Elsewhere) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", ")
        assert (await elsewhere.look(), elsewhere.has_read_stored) == ("Ahoy, ", True)
        assert (await elsewhere.look(), elsewhere.has_read_stored) == ("Ahoy, ", False)
        await desk.write("you", ".")
        assert (await elsewhere.look(), elsewhere.has_read_stored) == ("Ahoy, you.", False)


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_a_mirror_gets_text_while_a_checkpoint_waits(desk: Desk, elsewhere: Elsewhere) -> None:
    journaling = JournalWriter(Journal(desk.harness.database, desk.replica), desk.directory, 0.01)
    with desk.directory.host(desk.view, OWNER):
        desk.view.append("Ahoy")
        async with desk.harness.locker() as locker:
            async with locker.holding("LOCK TABLE open_text IN SHARE MODE"):
                writing = asyncio.create_task(journaling.run())
                await locker.waiting()
                for text in (", ", "you", "."):
                    desk.view.append(text)
                    while await elsewhere.look() != desk.view.open_text(0):
                        assert not writing.done()
            while "".join(await desk.stored()) != "Ahoy, you.":
                assert not writing.done()
        assert await elsewhere.look() == "Ahoy, you."
        writing.cancel()


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_a_mirror_that_comes_too_late_for_the_log_reads_the_stored_text(desk: Desk, elsewhere: Elsewhere) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("A")
        assert await elsewhere.look() == "A"
        await desk.write("h", "o", "y", ",", " you.")
        assert (await elsewhere.look(), elsewhere.has_read_stored) == ("Ahoy, you.", True)
        assert (await elsewhere.look(), elsewhere.has_read_stored) == ("Ahoy, you.", False)


@pytest.mark.usefixtures("always_a_checkpoint")
async def test_a_mirror_shows_text_when_the_row_of_its_round_comes(
    harness: Harness, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await harness.ask()
    late = Desk(harness, asked, await claimed(harness, asked, desk.replica), desk.replica)
    elsewhere = Elsewhere(late, monkeypatch)
    with late.directory.host(late.view, OWNER):
        await late.write("Ahoy")
        assert await elsewhere.look() == ""
        for _ in range(3):
            await late.flush()  # until the log has delivered all its text
        assert await elsewhere.look() == ""
        await begin_rounds(harness.database, [(late.view.turn, first_round())])
        assert await elsewhere.look() == "Ahoy"


async def test_a_mirror_that_follows_a_replica_of_the_version_before_reads_stored_text(
    desk: Desk, elsewhere: Elsewhere
) -> None:
    texts, length = OpenTexts(desk.harness.database), 0
    for text in ("Ahoy", ", ", "you."):
        await texts.store([JournalEntry(desk.asked.turn, 1, 0, length, 1, TEXT, text)])
        length += len(text)
        assert len(await elsewhere.look()) == length


async def test_the_text_of_a_turn_that_another_replica_takes_over_stays_in_its_mirrors(
    desk: Desk, elsewhere: Elsewhere
) -> None:
    with desk.directory.host(desk.view, OWNER):
        await desk.write("Ahoy", ", you.")
        assert await elsewhere.look() == "Ahoy, you."
        assert await desk.recalled() == "Ahoy, you."
        await desk.write(" I am not dead.")
        assert await elsewhere.look() == "Ahoy, you."
        await Queue(desk.harness.database, desk.replica, "elsewhere", 1).claim(1)
        assert await elsewhere.look() == "Ahoy, you.", "the log has text of an attempt that is over"


@pytest.mark.parametrize("seed", range(4))
async def test_a_mirror_always_equals_the_log(
    desk: Desk, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Ticks, checkpoints, lost answers and crashes of Postgres come in any order. Each look contains exactly the text
    of the last tick that was written.
    """
    chance, append, journaled = random.Random(seed), Journal.append, ""
    outcome = "written"

    async def faulty(journal: Journal, entries: Sequence[JournalEntry]) -> bool:
        is_whole = outcome != "lost" and await append(journal, entries)
        if outcome != "written":
            raise StorageUnavailable("the connection was lost")
        return is_whole

    monkeypatch.setattr(Journal, "append", faulty)
    with desk.directory.host(desk.view, OWNER):
        for step in range(60):
            monkeypatch.setattr(journal_writer, "CHECKPOINT", chance.choice([0.0, 3600.0, 3600.0]))
            outcome = chance.choice(["written"] * 4 + ["lost", "unanswered"])
            if chance.random() < 0.05:
                await desk.harness.database.row(EMPTY)
                outcome = "written"
                await desk.write(f"{step}! ")  # this write notices the crash
            if chance.random() < 0.8:
                desk.view.append(f"{step} ")
            await desk.flush()
            if outcome == "written":
                journaled = desk.view.open_text(0)
            if chance.random() < 0.1:
                elsewhere.view = None
            if chance.random() < 0.5:
                found = await elsewhere.look()
                assert found.startswith(journaled)
                assert desk.view.open_text(0).startswith(found)

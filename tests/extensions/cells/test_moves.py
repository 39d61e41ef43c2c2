"""Moves an owner to another cell: each row arrives once, even if the move is interrupted."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from tests.support.harness import OWNER, Asked, Harness
from tests.support.owner_rows import fill_owner, rows_of
from turnstream.cli import commands
from turnstream.domain.errors import ConfigError, NotFound, StorageError, StorageUnavailable
from turnstream.domain.identity import Identity, arriving_name, departed_name
from turnstream.extensions.cells.moves import Move, Moves
from turnstream.extensions.cells.owner_ahead import AHEAD, COPIED, OwnerAhead, stored_columns
from turnstream.extensions.cells.owner_move import MOVED, OwnerMove
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.encryption.codec import SealingCodec
from turnstream.extensions.encryption.rotation import KeyRotation
from turnstream.extensions.keys.rotation import KeyCounts, key_counts
from turnstream.extensions.search.index import SearchIndex
from turnstream.kit.ids import new_id
from turnstream.libraries.erasure.erasure import erase_owner
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.sealed_rows import FORMS
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.turns import CANCEL_TURN
from turnstream.storage.database import Database, Statement, connect
from turnstream.storage.migrations import newest_revision
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.runs.queue import Queue

_ELSEWHERE = re.compile(r"\bother\b|,mark,")
STEPS = ("ahead", "hold", "settle", "lock", "copy", "depart", "leave", "arrive")
# Tables that a move does not copy, or whose rows triggers create again.
LEFT = (
    "audit",
    "moves",
    "tool_cache",
    "search_segments",
    "search_chats",
    "search_texts",
    "search_pending",
    "search_documents",
    "replicas",
    "sweeps",
    "clock_steps",
    "token_requirement",
    "signing_key",
    "stopped_jobs",
    "provider_rates",
)
# Deletes sign-ins, because no key in this test decrypts their tokens.
FORGET_SIGN_INS = Statement("DELETE FROM sign_ins RETURNING owner")
DEPARTED = departed_name(OWNER, "08")
ARRIVING = arriving_name(OWNER)


class Killed(BaseException):
    """Simulates a kill of the process that moves the owner."""


def killed_at(step: str) -> Callable[[str], None]:
    def end(name: str) -> None:
        if name == step:
            raise Killed

    return end


@dataclass(frozen=True)
class Cells:
    harness: Harness
    target_url: str
    target: Database
    asked: Asked

    def move(self, step: Callable[[str], None] = lambda _name: None) -> OwnerMove:
        return OwnerMove(OWNER, ("07", self.harness.database), ("08", self.target), step)

    async def here(self) -> dict[str, list[str]]:
        return await rows_of(self.harness.url, without=LEFT)

    async def there(self) -> dict[str, list[str]]:
        return await rows_of(self.target_url, without=LEFT)


@pytest.fixture(autouse=True)
def no_replica_needs_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.cells.owner_move.LOOK", 0)


@pytest.fixture
async def cells(harness: Harness, other_database_url: str) -> AsyncIterator[Cells]:
    asked = await fill_owner(harness)
    async with connect(other_database_url, size=2) as target:
        yield Cells(harness, other_database_url, target, asked)


def of_the_owner(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the rows of the owner. Marks of the journal are left out."""
    found = {table: [row for row in all_rows if not _ELSEWHERE.search(row)] for table, all_rows in rows.items()}
    return {table: mine for table, mine in found.items() if mine}


def queue_of(database: Database) -> Queue:
    return Queue(database, new_id(), str(new_id()), 1)


async def _moved(cells: Cells) -> Mapping[str, int]:
    move = cells.move()
    await move.run()
    return await move.counts()


async def test_every_row_of_the_owner_moves_and_no_other(cells: Cells) -> None:
    before = await cells.here()
    counts = await _moved(cells)
    assert await cells.there() == of_the_owner(before)
    assert {table: len(rows) for table, rows in of_the_owner(before).items()} == {
        table: number for table, number in counts.items() if number
    }
    assert await Tokens(cells.target).ever_existed()
    assert await Moves(cells.harness.database).all() == {
        OWNER: Move("08", "gone", False),
        DEPARTED: Move("08", "leaving", True),
    }
    assert await Moves(cells.target).all() == {OWNER: Move("07", "arrived", False)}
    await SearchIndex(cells.target).index()
    texts = Statement("SELECT count(*) AS number FROM search_texts WHERE owner = :owner")
    found = await cells.target.row(texts, owner=OWNER)
    assert found is not None
    assert found["number"] == len(before["turns"])


def test_every_table_is_moved_or_left_for_a_reason() -> None:
    rest = ALL_TABLES.keys() - {table.name for table in MOVED}
    assert rest == {*LEFT, "search_backlog", "reservations", "activity", "journal_ticks"}


def test_every_column_of_a_table_copied_ahead_is_copied_and_changeable_ones_are_renewed() -> None:
    for name, table in COPIED.items():
        assert set(table.columns) == set(stored_columns(name))
    chats, uploads, tool_sets = COPIED["chats"], COPIED["uploads"], COPIED["tool_sets"]
    assert chats.renew is not None
    assert {"id", "owner", "of_turn", *chats.live, *chats.renew.columns} == set(chats.columns)
    assert {"id", "owner", "digest", "content", *uploads.live} == set(uploads.columns)
    assert {"owner", "digest", "tools", *tool_sets.live} == set(tool_sets.columns)


async def test_rows_left_in_the_old_cell_are_erased_like_an_owner(cells: Cells) -> None:
    await cells.move().run()
    for owner in (DEPARTED, OWNER):
        await erase_owner(cells.harness.database, owner, lambda _turn: 0, 0)
    rest = await cells.here()
    assert of_the_owner(rest).keys() <= {"deleted_chats"}
    assert await Moves(cells.harness.database).all() == {}


@pytest.mark.parametrize("step", STEPS)
async def test_a_move_that_is_cut_off_anywhere_loses_and_doubles_nothing(cells: Cells, step: str) -> None:
    before = of_the_owner(await cells.here())
    with pytest.raises(Killed):
        await cells.move(killed_at(step)).run()
    ahead = await cells.there()
    assert ahead.keys() == (set() if step == "ahead" else AHEAD)
    named = [row for table, rows in ahead.items() if "owner" in ALL_TABLES[table].columns for row in rows]
    assert all(ARRIVING in row for row in named), "nothing is served before the move is whole"
    gone = (await Moves(cells.harness.database).all()).get(OWNER, Move("08", "leaving", False)).state == "gone"
    assert gone == (step == "arrive")
    if not gone:
        assert of_the_owner(await cells.here()) == before
    await cells.move().run()
    moved = await cells.there()
    if gone:  # the move makes webhooks due again, and its chats are a microsecond newer
        for table in ("webhooks", "chats"):
            assert len(moved.pop(table)) == len(before.pop(table))
    assert moved == before
    with pytest.raises(ConfigError, match="in the cell 08 already"):
        await cells.move().run()


async def test_files_and_documents_are_copied_before_the_owner_is_held_and_later_changes_afterwards(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.cells.owner_ahead._PORTION", 1)
    source, documents = Uploads(cells.harness.database), Documents(cells.harness.database)
    kept, renamed, removed = [await source.put(OWNER, "text/plain", word.encode()) for word in ("a", "b", "c")]
    for path in ("kept.md", "changed.md", "removed.md"):
        await documents.put(OWNER, path, path)
    with pytest.raises(Killed):
        await cells.move(killed_at("hold")).run()
    # Marks the content of the first copy: a second copy would overwrite the mark.
    await cells.target.row(
        Statement("UPDATE uploads SET content = 'copied ahead' WHERE id = :id RETURNING id"), id=kept.id
    )
    await cells.target.row(
        Statement("UPDATE documents SET content = 'copied ahead' WHERE path = 'kept.md' RETURNING path")
    )
    await source.put(OWNER, "text/markdown", b"b")
    await source.delete(OWNER, removed.id)
    again = await source.put(OWNER, "text/plain", b"c")
    await documents.put(OWNER, "changed.md", "new")
    await documents.delete(OWNER, "removed.md")
    await documents.put(OWNER, "added.md", "also new")
    before = of_the_owner(await cells.here())
    counts = await _moved(cells)
    moved = Uploads(cells.target)
    assert await moved.read(OWNER, kept.id) == ("text/plain", b"copied ahead")
    assert await moved.read(OWNER, renamed.id) == ("text/markdown", b"b")
    assert (await moved.read(OWNER, removed.id), await moved.read(OWNER, again.id)) == (None, ("text/plain", b"c"))
    texts = {path: await Documents(cells.target).read(OWNER, path) for path in ("kept.md", "changed.md", "added.md")}
    assert texts == {"kept.md": "copied ahead", "changed.md": "new", "added.md": "also new"}
    there = await cells.there()
    for table in ("uploads", "documents"):
        assert counts[table] == len(there[table]) == len(before[table])
        assert not any(ARRIVING in row for row in there[table])
    times = Statement("SELECT id, created_at FROM uploads ORDER BY id")
    assert await cells.target.rows(times) == await cells.harness.database.rows(times)


@pytest.mark.parametrize(
    ("change", "copied_again"),
    [
        ("UPDATE asks SET answered_at = now() WHERE turn_id = :turn RETURNING turn_id", 1),
        # A change in the first exchange causes the later exchanges to be copied again too.
        (
            """
            UPDATE turns SET hook_failures = 1
            WHERE id = (SELECT question.parent_id FROM turns JOIN turns AS question ON question.id = turns.parent_id
            WHERE turns.id = :turn) RETURNING id
            """,
            3,
        ),
    ],
)
async def test_ended_turns_are_copied_before_the_owner_is_held_and_later_changes_afterwards(
    cells: Cells, monkeypatch: pytest.MonkeyPatch, change: str, copied_again: int
) -> None:
    harness, owned = cells.harness, Chats(cells.harness.database)
    monkeypatch.setattr("turnstream.extensions.cells.owner_ahead._PORTION", 1)
    chats = [chat.id for chat, _ in await owned.page(OWNER, 10, None)]
    (gone,) = (chat for chat in chats if chat != cells.asked.chat)
    asked = Statement("UPDATE turns SET asked = 1 WHERE id = :turn RETURNING id")
    await harness.database.row(asked, turn=cells.asked.turn)
    with pytest.raises(Killed):
        await cells.move(killed_at("hold")).run()
    assert {table: len(rows) for table, rows in (await cells.there()).items()} == {
        table: len(rows) for table, rows in of_the_owner(await cells.here()).items() if table in AHEAD
    }
    assert await cells.target.rows(Statement("SELECT FROM search_pending")) == []
    # Marks the blocks of the first copy: a second copy would overwrite the marks.
    mark = Statement("UPDATE blocks SET notes = '[\"copied ahead\"]' WHERE index = 0 RETURNING turn_id")
    marked = {row["turn_id"] for row in await cells.target.rows(mark)}
    await owned.delete(OWNER, gone)
    await owned.change(OWNER, cells.asked.chat, lambda _: {"title": "Renamed"})
    opened = await harness.ask("In between", after=cells.asked)
    assert await harness.database.row(Statement(change), turn=cells.asked.turn)
    before = of_the_owner(await cells.here())
    counts = await _moved(cells)
    there = await cells.there()
    assert {table: len(rows) for table, rows in there.items()} == {table: len(rows) for table, rows in before.items()}
    assert {table: number for table, number in counts.items() if number} == {
        table: len(rows) for table, rows in before.items()
    }
    assert {table for table in before if there[table] != before[table]} == {"blocks"}
    kept = Statement("SELECT turn_id FROM blocks WHERE notes::text LIKE '%copied ahead%'")
    assert len(marked - {row["turn_id"] for row in await cells.target.rows(kept)}) == 2 + copied_again
    assert await queue_of(cells.target).claim(10) == [opened.turn]


async def test_a_chat_that_has_not_changed_since_it_was_copied_is_not_read_again(cells: Cells) -> None:
    """The system prompt may be long, and the owner's requests wait during this step, so it must not be read again."""
    with pytest.raises(Killed):
        await cells.move(killed_at("hold")).run()
    mark = Statement("UPDATE chats SET system_prompt = 'copied ahead' RETURNING id")
    marked = {row["id"] for row in await cells.target.rows(mark)}
    await Chats(cells.harness.database).change(OWNER, cells.asked.chat, lambda _: {"title": "Renamed"})
    await cells.move().run()
    kept = await cells.target.rows(Statement("SELECT id FROM chats WHERE system_prompt = 'copied ahead'"))
    assert {row["id"] for row in kept} == marked - {cells.asked.chat}


async def test_a_move_that_is_cut_off_after_each_portion_gets_on_by_one(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.cells.owner_ahead._PORTION", 1)
    before = of_the_owner(await cells.here())
    portions = sum(len(before[table]) for table in COPIED)
    steps: list[str] = []

    def second(name: str) -> None:
        steps.append(name)
        if len(steps) == 2:
            raise Killed

    for _ in range(portions):
        steps.clear()
        with pytest.raises(Killed):
            await cells.move(second).run()
    assert steps == ["ahead", "hold"]
    await cells.move().run()
    assert await cells.there() == before


async def test_an_owner_who_makes_and_deletes_chats_meanwhile_arrives_with_the_final_state(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.cells.owner_ahead._PORTION", 200_000)  # each portion has a few turns
    harness, owned, made = cells.harness, Chats(cells.harness.database), list[Asked]()

    async def work() -> None:
        for number in count():
            made.append(await harness.ask("Begin"))
            await harness.database.row(CANCEL_TURN, turn=made[-1].turn, withdraws=False)
            if number % 3 == 0:
                await harness.ask("Go on", after=made[-1])
            if number % 3 == 1:
                await owned.delete(OWNER, made[number // 2].chat)
            await owned.change(OWNER, made[-1].chat, lambda _: {"title": "Renamed"})

    working = asyncio.create_task(work())
    await cells.move().run()
    with pytest.raises((StorageError, NotFound)):
        await working
    departed = {
        table: sorted(row.replace(f'"{DEPARTED}"', OWNER) for row in rows if not _ELSEWHERE.search(row))
        for table, rows in (await cells.here()).items()
    }
    there = await cells.there()
    assert len(there["chats"]) == len(departed["chats"]) > 2
    for table in AHEAD - {"chats"}:  # in the old cell, the chats are a microsecond newer
        assert there[table] == departed[table]


async def test_a_turn_that_is_open_again_is_not_copied_ahead(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover between the listing of turns and their copy can lose the end of a turn, which is then open again. A
    worker of the new cell would claim a copy of this turn.
    """
    monkeypatch.setattr("turnstream.extensions.cells.owner_ahead._parents_first", lambda turns: turns)
    opened = await cells.harness.ask("In between", after=cells.asked)
    with pytest.raises(Killed):
        await cells.move(killed_at("hold")).run()
    assert await queue_of(cells.target).claim(10) == []
    assert len((await cells.there())["turns"]) == len((await cells.here())["turns"]) - 1
    await cells.move().run()
    assert await queue_of(cells.target).claim(10) == [opened.turn]


async def test_rows_copied_ahead_may_be_erased(cells: Cells) -> None:
    before = of_the_owner(await cells.here())
    with pytest.raises(Killed):
        await cells.move(killed_at("hold")).run()
    async for _ in Owners(cells.target).erase(ARRIVING):
        pass
    assert await Owners(cells.target).is_erased(ARRIVING)
    await cells.move().run()
    assert await cells.there() == before


@pytest.mark.parametrize("table", sorted(COPIED.keys() - {"turns"}))
async def test_an_erasure_during_the_takeover_ends_the_move(cells: Cells, table: str) -> None:
    before = of_the_owner(await cells.here())
    deleting = f"""
        CREATE FUNCTION delete_first() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER erased BEFORE UPDATE OF owner ON {table} FOR EACH ROW EXECUTE FUNCTION delete_first()
    """
    for statement in deleting.split(";\n"):
        await cells.target.rows(Statement(statement))
    with pytest.raises(ConfigError, match=f"{table} of 'ada .arriving.' were deleted in the new cell during the move"):
        await cells.move().run()
    assert of_the_owner(await cells.here()) == before
    await cells.target.rows(Statement(f"DROP TRIGGER erased ON {table}"))
    await cells.move().run()
    assert await cells.there() == before


async def test_of_two_moves_at_once_one_is_refused(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_the_owner(await cells.here())
    lock = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    async with cells.target.transaction() as another:
        await another.rows(lock, name=ARRIVING)
        with pytest.raises(ConfigError, match="Another command is moving ada to the same cell"):
            await cells.move().run()
        # This command has finished its copy, and the other command is still copying.
        monkeypatch.setattr(OwnerAhead, "copy_ahead", AsyncMock())
        with pytest.raises(ConfigError, match="Another command is moving ada to the same cell"):
            await cells.move().run()
        monkeypatch.undo()
        monkeypatch.setattr("turnstream.extensions.cells.owner_move.LOOK", 0)
    assert await cells.there() == {}
    ends = await asyncio.gather(cells.move().run(), cells.move().run(), return_exceptions=True)
    assert all(end is None or isinstance(end, ConfigError | StorageError) for end in ends), ends
    if None not in ends:
        await cells.move().run()
    assert await cells.there() == before


async def test_a_webhook_is_due_in_one_cell_only(cells: Cells) -> None:
    due = Statement("SELECT count(*) AS number FROM webhooks WHERE due_at <= now()")
    with pytest.raises(Killed):
        await cells.move(killed_at("arrive")).run()
    counts = [await database.row(due) for database in (cells.harness.database, cells.target)]
    assert [row["number"] for row in counts if row] == [0, 0]
    await cells.move().run()
    counts = [await database.row(due) for database in (cells.harness.database, cells.target)]
    assert [row["number"] for row in counts if row] == [0, 1]


async def test_while_an_owner_is_held_nothing_is_written_or_claimed(cells: Cells) -> None:
    harness = cells.harness
    queued = await harness.ask("In between")
    with pytest.raises(Killed):
        await cells.move(killed_at("settle")).run()
    with pytest.raises(StorageUnavailable, match="moved to the cell 08"):
        await Documents(harness.database).put(OWNER, "new.md", "x")
    with pytest.raises(StorageUnavailable):
        await Chats(harness.database).create(OWNER, None, None, {})
    await Documents(harness.database).put("other", "new.md", "x")
    assert await queue_of(harness.database).claim(10) == []
    await cells.move().run()
    assert await queue_of(harness.database).claim(10) == [], "the departed owner's"
    assert await queue_of(cells.target).claim(10) == [queued.turn]


async def test_an_exchange_that_meets_the_copy_is_not_accepted(cells: Cells) -> None:
    """The message waits for the lock on its chat. When it gets the lock, the chat has moved."""
    waits = asyncio.Event()

    def step(name: str) -> None:
        if name == "depart":
            waits.set()

    move = cells.move(step)
    moving = asyncio.create_task(move.run())
    await waits.wait()
    with pytest.raises(NotFound):
        await cells.harness.ask("Too late", after=cells.asked)
    await moving
    assert (await move.counts())["turns"] == len((await cells.there())["turns"])


async def test_a_turn_that_does_not_stop_ends_the_move(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.cells.owner_move._SETTLE", 0.0)
    asked = await cells.harness.ask("Long")
    queue = queue_of(cells.harness.database)
    await queue.renew_lease(60)
    assert await queue.claim(10) == [asked.turn]
    with pytest.raises(ConfigError, match=f"Turn {asked.turn} of {OWNER} does not stop; nothing was moved"):
        await cells.move().run()
    assert await Moves(cells.harness.database).all() == {}


async def test_moves_that_are_refused(cells: Cells) -> None:
    source, target = ("07", cells.harness.database), ("08", cells.target)
    await cells.target.rows(
        Statement(
            "INSERT INTO replicas (id, address, session, lease_until) SELECT gen_random_uuid(), 'old:1', 7, now()"
        )
    )
    with pytest.raises(ConfigError, match="The replica old:1 of the cell 08 is of the version before tool sets"):
        await cells.move().run()
    await cells.target.rows(Statement("DELETE FROM replicas"))
    with pytest.raises(NotFound, match="no owner nobody"):
        await OwnerMove("nobody", source, target).run()
    await Tokens(cells.target).create("of the same name", Identity(OWNER))
    with pytest.raises(ConfigError, match="The cell 08 has an owner ada already"):
        await cells.move().run()
    await Owners(cells.target).delete_tokens(OWNER)
    await Tokens(cells.target).create("phone", Identity("carl"))
    with pytest.raises(ConfigError, match="The cell 08 has a token named 'phone' of another owner: delete one"):
        await cells.move().run()
    await Owners(cells.target).delete_tokens("carl")
    await cells.move().run()
    with pytest.raises(ConfigError, match="has been moved to the cell 08"):
        await OwnerMove(OWNER, source, ("09", cells.target)).run()
    # The credentials of the owner are still in cell 07.
    with pytest.raises(ConfigError, match="The cell 07 has an owner ada already"):
        await OwnerMove(OWNER, target, source).run()
    await cells.target.row(Statement("ALTER TABLE chats ADD COLUMN newer text"))
    with pytest.raises(ConfigError, match="tables of different versions"):
        await OwnerMove("other", source, target).run()


async def test_secrets_open_in_the_new_cell_by_its_master_key_whenever_the_move_is_cut_off(cells: Cells) -> None:
    here, there = MasterKeys.read(new_master_key()), MasterKeys.read(new_master_key())
    sealed = (await OwnerKeys(cells.harness.database, here).find_or_create(OWNER)).seal("a secret", "place")

    def move(step: Callable[[str], None] = lambda _name: None) -> OwnerMove:
        return OwnerMove(OWNER, ("07", cells.harness.database), ("08", cells.target), step, masters=(here, there))

    for step in ("copy", "arrive"):
        with pytest.raises(Killed):
            await move(killed_at(step)).run()
        assert await OwnerKeys(cells.target, there).find(OWNER) is None
    await move().run()
    key = await OwnerKeys(cells.target, there).find(OWNER)
    assert key is not None
    assert key.open(sealed, "place") == "a secret"
    assert await key_counts(OwnerKeys(cells.target, there)) == KeyCounts(every=1, others=0)
    # this erasure also deletes the credentials in the old cell
    async for _ in Owners(cells.harness.database).erase(OWNER):
        pass
    assert await OwnerKeys(cells.harness.database, here).find(OWNER) is None


async def test_secrets_that_the_new_cell_could_not_open_are_not_moved(cells: Cells) -> None:
    before, mine, theirs = (MasterKeys.read(new_master_key()) for _ in range(3))
    source, target = ("07", cells.harness.database), ("08", cells.target)
    await OwnerKeys(cells.harness.database, mine).find_or_create(OWNER)
    rows = await cells.here()
    for masters, sentence in (
        ((None, theirs), "set TURNSTREAM_MASTER_KEY to the master key of the cell 07"),
        ((mine, None), "set TARGET_MASTER_KEY to the master key of the cell 08"),
        ((before, theirs), "which this server lacks. Nothing was moved"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            await OwnerMove(OWNER, source, target, masters=masters).run()
    lacking = Queue(cells.target, new_id(), "old:1", 7, master_keys=before.ids)
    await lacking.renew_lease(60)
    with pytest.raises(ConfigError, match="The replica old:1 of the cell 08 lacks its master key"):
        await OwnerMove(OWNER, source, target, masters=(mine, theirs)).run()
    assert (await cells.here(), of_the_owner(await cells.there())) == (rows, {})
    await lacking.leave()
    await Queue(cells.target, new_id(), "new:1", 8, master_keys=theirs.ids).renew_lease(60)
    await OwnerMove(OWNER, source, target, masters=(mine, theirs)).run()


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.encryption.rotation.WRITERS", 0.0)
    monkeypatch.setattr("turnstream.extensions.encryption.rotation.READERS", 0.0)


@pytest.mark.usefixtures("no_waits")
async def test_encrypted_rows_open_in_the_new_cell(cells: Cells) -> None:
    here, there = (MasterKeys.read(new_master_key()) for _ in range(2))
    source, target = cells.harness.database, cells.target
    source.codec = SealingCodec(OwnerKeys(source, here), seals=True)
    await source.rows(FORGET_SIGN_INS)
    await Documents(source).put(OWNER, "sealed.md", "Tide.")
    file = await Uploads(source).put(OWNER, "text/plain", b"Ebb.", "ebb.txt")

    def move(step: Callable[[str], None] = lambda _name: None) -> OwnerMove:
        return OwnerMove(OWNER, ("07", source), ("08", target), step, masters=(here, there))

    lacking = Queue(target, new_id(), "old:1", 7, master_keys=there.ids)
    await lacking.renew_lease(60)
    with pytest.raises(ConfigError, match="The replica old:1 of the cell 08 lacks the extension encryption"):
        await move().run()
    assert of_the_owner(await cells.there()) == {}
    await lacking.leave()
    await Queue(target, new_id(), "new:1", 8, extensions=FORMS, master_keys=there.ids).renew_lease(60)
    with pytest.raises(Killed):
        await move(killed_at("hold")).run()
    # After the rotation, no key decrypts the rows that were already copied.
    rotation = KeyRotation(source, OwnerKeys(source, here), (), age=0.0)
    steps = rotation.run()
    assert (await anext(steps)).kind == "replaced"
    with pytest.raises(ConfigError, match="gets a new key just now"):
        await move().run()
    assert [(step.kind, step.failed) async for step in steps] == [("resealed", []), ("destroyed", [])]
    await move().run()
    target.codec = SealingCodec(OwnerKeys(target, there), seals=True)
    assert await Documents(target).read(OWNER, "sealed.md") == "Tide."
    assert await Uploads(target).contents([file.id]) == {file.id: b"Ebb."}
    keys = await target.rows(Statement("SELECT owner FROM owner_keys"))
    assert [row["owner"] for row in keys] == [OWNER]


@pytest.mark.usefixtures("no_waits")
async def test_a_key_that_changes_while_rows_are_copied_ends_the_move(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters, source = MasterKeys.read(new_master_key()), cells.harness.database
    source.codec = SealingCodec(OwnerKeys(source, masters), seals=True)
    await source.rows(FORGET_SIGN_INS)
    await Documents(source).put(OWNER, "sealed.md", "Tide.")
    move, copy_ahead = cells.move(), OwnerAhead.copy_ahead
    move._masters = (masters, masters)

    async def with_new_key(*places: Any) -> None:
        await copy_ahead(*places)
        async for _ in KeyRotation(source, OwnerKeys(source, masters), (), age=0.0).run():
            pass

    with monkeypatch.context() as patched:
        patched.setattr(OwnerAhead, "copy_ahead", with_new_key)
        with pytest.raises(ConfigError, match="The key of ada was changed while rows were copied; nothing was moved"):
            await move.run()
    await move.run()
    cells.target.codec = SealingCodec(OwnerKeys(cells.target, masters), seals=True)
    assert await Documents(cells.target).read(OWNER, "sealed.md") == "Tide."


async def test_the_command_takes_the_master_key_of_the_new_cell(cells: Cells) -> None:
    here, there = new_master_key(), new_master_key()
    key = await OwnerKeys(cells.harness.database, MasterKeys.read(here)).find_or_create(OWNER)
    env = {
        **os.environ,
        "DATABASE_URL": cells.harness.url,
        "TURNSTREAM_CELL": "07",
        "TURNSTREAM_MASTER_KEY": here,
        "TARGET_DATABASE_URL": cells.target_url,
    }

    async def call(**more: str) -> str:
        arguments = ["owners", "move", OWNER, "--to", "08"]
        done = await asyncio.to_thread(CliRunner().invoke, commands, arguments, env=env | more)
        return f"{done.output}{done.exception or ''}"

    wrong = await call(TARGET_MASTER_KEY="dGVsbHRhbGU=")
    assert "TARGET_MASTER_KEY: key 1 must have 32 bytes, not 8" in wrong
    assert "ada is in the cell 08" in await call(TARGET_MASTER_KEY=there)
    found = await OwnerKeys(cells.target, MasterKeys.read(there)).find(OWNER)
    assert found is not None
    assert found.open(key.seal("a secret", "place"), "place") == "a secret"


@pytest.mark.parametrize("while_copying", [False, True])
async def test_cells_of_two_versions_are_refused_also_where_their_columns_are_the_same(
    cells: Cells, monkeypatch: pytest.MonkeyPatch, while_copying: bool
) -> None:
    """The copy takes hours, so the new cell may be upgraded during the copy."""
    before = of_the_owner(await cells.here())
    revision = Statement("UPDATE turnstream_alembic_version SET version_num = :revision RETURNING version_num")

    async def upgrade_target(*_: object) -> None:
        await cells.target.row(revision, revision="9999")

    if while_copying:
        monkeypatch.setattr(OwnerAhead, "copy_ahead", upgrade_target)
    else:
        await upgrade_target()
    mine = newest_revision()
    with pytest.raises(ConfigError, match=f"revisions are {mine} and 9999, that of the command is {mine}. Nothing was"):
        await cells.move().run()
    assert await cells.there() == {}
    assert await Moves(cells.harness.database).all() == {}
    assert of_the_owner(await cells.here()) == before

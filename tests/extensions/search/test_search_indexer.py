"""The indexer indexes each text once after its commit, even during concurrent commits, waits and deletions."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from tests.support.harness import Harness
from tests.support.locks import Locker
from tests.support.sweeping import swept
from turnstream.domain.errors import RequestRefused
from turnstream.extensions.search.index import SearchIndex
from turnstream.extensions.search.indexer import SearchIndexer
from turnstream.kit.ids import new_id
from turnstream.libraries.searches import places as module
from turnstream.libraries.searches.search import SearchFilter
from turnstream.storage.database import Statement, connect

BACKEND = Statement("SELECT pg_backend_pid()")
LAG = "turnstream_search_lag_seconds"
SAY = """
WITH made AS (INSERT INTO chats (id, owner, title) VALUES ($1, 'ada', 'Title') RETURNING id), said AS (
    INSERT INTO turns (id, chat_id, role, status, ended_at) SELECT $2, id, 'user', 'complete', now() FROM made
)
INSERT INTO blocks (turn_id, index, round, attempt, type, text) VALUES ($2, 0, 0, 0, 'text', $3)
"""


@pytest.fixture
async def locker(harness: Harness) -> AsyncIterator[Locker]:
    async with harness.locker() as locker:
        yield locker


@pytest.fixture
def search(harness: Harness) -> SearchIndex:
    return SearchIndex(harness.database)


async def say(locker: Locker, chat: UUID | None = None, word: str = "Ahoy") -> UUID:
    """Adds a turn that contains this word, to this chat or to a new chat."""
    turn = new_id()
    await locker.connection.execute(SAY, chat or new_id(), turn, word)
    return turn


async def indexed(locker: Locker, word: str = "ahoy") -> set[UUID]:
    """Returns the indexed turns that contain this word."""
    rows = await locker.connection.fetch("SELECT turn_id FROM search_texts WHERE words = $1::text::tsvector", word)
    return {row["turn_id"] for row in rows}


async def test_all_that_waits_is_indexed_in_steps_and_the_lag_is_measured(search: SearchIndex, locker: Locker) -> None:
    turns = {await say(locker) for _ in range(60)}
    await locker.connection.execute("UPDATE search_pending SET added_at = now() - interval '1 hour'")
    assert await indexed(locker) == set()
    assert (await search.lag() or 0) > 3500
    assert await search.index(), "sixty turns and sixty titles are more than one step"
    indexer = SearchIndexer(search)
    await indexer.look()
    assert (REGISTRY.get_sample_value(LAG) or 0) > 3500
    assert await indexed(locker) == turns
    assert await search.lag() is None
    await indexer.look()
    assert REGISTRY.get_sample_value(LAG) == 0
    segments = await locker.connection.fetch("SELECT owner, chats FROM search_segments")
    assert [tuple(row) for row in segments] == [("ada", 60)]


async def test_a_late_commit_is_indexed_too(harness: Harness, search: SearchIndex, locker: Locker) -> None:
    async with harness.locker() as other:
        async with other.connection.transaction():
            late = await say(other)
            early = await say(locker)
            await search.index()
            assert await indexed(locker) == {early}
        await search.index()
    assert await indexed(locker) == {early, late}


@pytest.mark.parametrize("table", ["chats", "turns"])
async def test_a_text_deleted_by_another_transaction_is_skipped_and_the_rest_is_indexed(
    harness: Harness, search: SearchIndex, locker: Locker, table: str
) -> None:
    chat = new_id()
    held, free = await say(locker, chat), await say(locker)
    async with (
        harness.locker() as other,
        other.holding(f"DELETE FROM {table} WHERE $1 IN (id::text)", str(chat if table == "chats" else held)),
    ):
        await search.index()
        assert await indexed(locker) == {free}
        assert await search.lag() is not None
    await search.index()
    assert await indexed(locker) == {held, free}
    assert await search.lag() is None


async def test_a_text_deleted_earlier_leaves_the_backlog(search: SearchIndex, locker: Locker) -> None:
    chat = new_id()
    turn = await say(locker, chat)
    await locker.connection.execute("DELETE FROM turns WHERE id = $1", turn)
    await say(locker)
    await locker.connection.execute("DELETE FROM chats WHERE id <> $1", chat)
    await search.index()
    assert await search.lag() is None
    assert await indexed(locker) == set()


async def test_one_transaction_indexes_at_a_time(harness: Harness, search: SearchIndex, locker: Locker) -> None:
    turn = await say(locker)
    indexing = "SELECT pg_advisory_xact_lock('search_pending'::regclass::oid::bigint)"
    async with harness.locker() as other, other.holding(indexing):
        assert not await search.index()
        assert await indexed(locker) == set()
    await search.index()
    assert await indexed(locker) == {turn}


async def test_a_replica_of_an_older_version_indexes_it_by_its_sweep(search: SearchIndex, locker: Locker) -> None:
    turn = await say(locker)
    await swept(search.catch_up())
    assert await indexed(locker) == {turn}
    assert await search.lag() is None


async def test_a_sweep_indexes_texts_left_by_another_transaction(
    harness: Harness, search: SearchIndex, locker: Locker
) -> None:
    turns = {await say(locker) for _ in range(2)}
    indexing = "SELECT pg_advisory_xact_lock('search_pending'::regclass::oid::bigint)"
    async with harness.locker() as other, asyncio.TaskGroup() as group:
        async with other.holding(indexing):
            sweep = group.create_task(swept(search.catch_up()))
            await other.waiting()
            assert not sweep.done()
        await sweep
        assert await search.lag() is None
    assert await indexed(locker) == turns


async def test_a_text_that_postgres_refuses_keeps_no_other_out_of_the_index_and_no_search_from_its_answer(
    search: SearchIndex, locker: Locker
) -> None:
    refuse = "ALTER TABLE search_texts ADD CONSTRAINT no_poison CHECK (words <> 'poison'::tsvector)"
    await locker.connection.execute(refuse)
    poison, turns = await say(locker, word="Poison"), {await say(locker) for _ in range(2)}
    await search.page("ada", ["ahoy"], 10, None, SearchFilter())
    await SearchIndexer(search).look()
    assert await indexed(locker) == turns
    assert await search.lag() is None
    (left,) = await locker.connection.fetch("SELECT turn_id, refused FROM search_pending")
    assert (left["turn_id"], "no_poison" in left["refused"]) == (poison, True)
    assert await search.is_complete("ada")
    await locker.connection.execute("ALTER TABLE search_texts DROP CONSTRAINT no_poison")
    await locker.connection.execute("UPDATE search_pending SET refused = NULL")
    await SearchIndexer(search).look()
    assert await indexed(locker, "poison") == {poison}


async def test_a_slow_search_is_refused_and_no_sign_that_postgres_is_away(
    database_url: str, locker: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a standby, every statement has only the time limit of a search. The refusal must be the same there."""
    monkeypatch.setattr(module, "SEARCH_TIMEOUT", 0.2)
    async with connect(database_url, size=1, statement_timeout=0.2) as database:
        backend = await database.row(BACKEND)
        async with locker.holding("LOCK TABLE search_segments IN ACCESS EXCLUSIVE MODE"):
            with pytest.raises(RequestRefused, match="takes too long"):
                await SearchIndex(database).page("ada", ["ahoy"], 10, None, SearchFilter())
        assert await database.row(BACKEND) == backend


async def test_a_sweep_forgets_no_chat_that_a_transaction_marks_meanwhile(
    harness: Harness, search: SearchIndex, locker: Locker
) -> None:
    """The transaction starts before any replica has the extension, and commits after the sweep."""
    without = "INSERT INTO replicas (id, address, session, lease_until, extensions) VALUES ($1, 'x', 9, now(), '{}')"
    await locker.connection.execute(without, new_id())
    chat = new_id()
    early = await say(locker, chat)
    async with harness.locker() as other:
        async with other.connection.transaction():
            late = new_id()
            await other.connection.execute(
                "INSERT INTO turns (id, chat_id, parent_id, role, status, ended_at)"
                " VALUES ($1, $2, NULL, 'user', 'complete', now())",
                late,
                chat,
            )
            await other.connection.execute(
                "INSERT INTO blocks (turn_id, index, round, attempt, type, text) VALUES ($1, 0, 0, 0, 'text', 'Ahoy')",
                late,
            )
            await locker.connection.execute("UPDATE replicas SET extensions = '{search}'")
            await swept(search.catch_up())
            assert await indexed(locker) == set()
        await swept(search.catch_up())
    assert await indexed(locker) == {early, late}

"""Tool sets: the tools of requests are stored once for each owner, and each request is read as if it had its own
tools.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from tests.integration.test_row_security import acting_for
from tests.support.harness import OWNER, Asked, Harness
from tests.support.locks import Locker
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import HttpCall, ToolSpec, TurnRequest
from turnstream.extensions.archives.archives import OwnerExport, OwnerImport
from turnstream.kit.ids import new_id
from turnstream.libraries.copies.cutting import cut_after
from turnstream.libraries.copies.rows import Fork, Forks
from turnstream.libraries.dialects.past_exchanges import Histories, PastExchange
from turnstream.libraries.erasure.owners import Owners
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement, connect
from turnstream.storage.retention import unused_tool_sets
from turnstream.storage.row_security import admit, embedded_api_url
from turnstream.storage.rows import to_json

SCHEMA = json.dumps({"type": "object", "properties": {"query": {"type": "string", "description": "what to look for"}}})
WORDS = [
    "a",
    "about",
    "all",
    "and",
    "are",
    "as",
    "at",
    "be",
    "by",
    "can",
    "date",
    "each",
    "file",
    "find",
    "first",
    "for",
    "from",
    "give",
    "had",
    "has",
    "have",
    "in",
    "invoice",
    "is",
    "it",
    "last",
    "list",
    "many",
    "may",
    "message",
    "more",
    "name",
    "new",
    "not",
    "number",
    "of",
    "on",
    "one",
    "only",
    "open",
    "order",
    "other",
    "page",
    "part",
    "people",
    "project",
    "report",
    "returns",
    "row",
    "search",
    "see",
    "text",
    "that",
    "the",
    "their",
    "there",
    "these",
    "time",
    "to",
    "up",
    "use",
    "user",
    "value",
    "way",
    "what",
    "when",
    "which",
    "will",
    "with",
    "word",
    "write",
]
CHANCE = Random(1)
# The tools have 40 kB together.
TOOLS = [ToolSpec(f"tool_{n}", " ".join(CHANCE.choices(WORDS, k=110)), SCHEMA, client=True) for n in range(50)]
ONE = TOOLS[:1]
HELLO = ScriptedProvider(lambda _: message_of(text("Hello.")))
OLD = "UPDATE tool_sets SET used_at = now() - interval '3 hours'"


@pytest.fixture
async def locker(harness: Harness) -> AsyncIterator[Locker]:
    async with harness.locker() as locker:
        yield locker


async def _sets(locker: Locker) -> int:
    count: int = await locker.connection.fetchval("SELECT count(*) FROM tool_sets")
    return count


async def _is_inline(locker: Locker, turn: UUID) -> bool:
    row = await locker.connection.fetchrow("SELECT tool_set, request->'tools' AS tools FROM turns WHERE id = $1", turn)
    assert row is not None
    assert (row["tool_set"] is None) == (row["tools"] is not None), "the tools are in one place"
    return row["tools"] is not None


async def _tools(harness: Harness, asked: Asked) -> list[ToolSpec]:
    request = (await harness.turn(asked)).request
    assert request is not None
    return list(request.tools)


async def _bytes(locker: Locker) -> int:
    size: int = await locker.connection.fetchval(
        "SELECT (SELECT sum(pg_column_size(request) + coalesce(pg_column_size(tool_set), 0)) FROM turns)"
        " + (SELECT coalesce(sum(pg_column_size(tool_sets.*)), 0) FROM tool_sets)"
    )
    return size


async def test_a_hundred_answers_with_fifty_tools_store_them_once(harness: Harness, locker: Locker) -> None:
    asked = [await harness.ask(f"Question {number}", tools=TOOLS) for number in range(100)]
    assert await _sets(locker) == 1
    stored = await _bytes(locker)
    for each in asked:
        assert await _tools(harness, each) == TOOLS
    await locker.connection.execute("DELETE FROM chats")
    await locker.connection.execute("DELETE FROM tool_sets")
    await _add_replica(locker)
    for number in range(100):
        await harness.ask(f"Question {number}", tools=TOOLS)
    inline = await _bytes(locker)
    assert stored < inline / 10, f"{inline:,} bytes in the requests, {stored:,} with a set"


async def test_a_request_without_tools_makes_no_set(harness: Harness, locker: Locker) -> None:
    asked = await harness.ask()
    assert await _is_inline(locker, asked.turn)
    assert await _sets(locker) == 0


async def test_tools_that_differ_in_a_byte_are_another_set(harness: Harness, locker: Locker) -> None:
    others = [ToolSpec("tool_0", ONE[0].description, SCHEMA.replace(" ", ""), client=True)]
    first, second = await harness.ask(tools=ONE), await harness.ask(tools=others)
    assert await _sets(locker) == 2
    assert (await _tools(harness, first), await _tools(harness, second)) == (ONE, others)


async def test_tools_with_a_nul_stay_in_the_request(harness: Harness, locker: Locker) -> None:
    """Postgres stores such JSON, but cannot look into it."""
    tools = [replace(ONE[0], description="a\x00b")]
    asked = await harness.ask(tools=tools)
    assert await _tools(harness, asked) == tools
    assert await _sets(locker) == 0


async def test_everything_that_reads_a_request_has_its_tools(harness: Harness, locker: Locker) -> None:
    exchanges, turns = Exchanges(harness.database), Turns(harness.database)
    async with harness.replica(HELLO) as replica:
        asked = await harness.ask(tools=TOOLS)
        turn = await harness.finish(replica, asked)
        assert turn.request is not None
        place = await exchanges.position(Target(OWNER, asked.chat))
        async with exchanges.after(Target(OWNER, asked.chat), None) as draft:
            drafted = draft.before
        async with exchanges.beside(OWNER, turn, None) as draft:
            sibling = await draft.create_sibling(turn.request)
        fork = Fork(cut_after(turn, None), new_chat=True)
        chat, copy = await Forks(harness.database).make(OWNER, fork, None)
        past = PastExchange([Block(0, 0, 0, TEXT, "Then")], [Block(0, 1, 1, TEXT, "Yes")], ["end_turn"])
        recorded = await Histories(harness.database).record(OWNER, chat, [past], turn.request)
    assert recorded is not None
    found = [turn, place.before, drafted, sibling]
    found += [await turns.get(OWNER, *each) for each in ((asked.chat, sibling.id), (chat, copy), (chat, recorded))]
    found += [each for each in await turns.path(OWNER, chat, recorded) if each.role == "assistant"]
    for each in found:
        assert each is not None
        assert each.request == turn.request
    assert await _sets(locker) == 1
    for id in (sibling.id, copy, recorded):
        assert not await _is_inline(locker, id)


async def _add_replica(locker: Locker, lease: str = "10 seconds") -> UUID:
    """Adds a replica of the previous version, whose statement does not name the new column."""
    id = new_id()
    await locker.connection.execute(
        "INSERT INTO replicas (id, address, session, lease_until) VALUES ($1, 'old', 7, now() + $2::text::interval)",
        id,
        lease,
    )
    return id


async def test_tools_stay_in_the_request_while_a_replica_lives_that_looks_for_them_there(
    harness: Harness, locker: Locker
) -> None:
    old = await _add_replica(locker)
    async with harness.replica(HELLO):
        beside = await harness.ask(tools=ONE)
        await locker.connection.execute(
            "UPDATE replicas SET lease_until = now() - interval '4 minutes' WHERE id = $1", old
        )
        shortly_after = await harness.ask(tools=ONE)
        await locker.connection.execute("DELETE FROM replicas WHERE id = $1", old)
        alone = await harness.ask(tools=ONE)
    asked = (beside, shortly_after, alone)
    assert [await _is_inline(locker, each.turn) for each in asked] == [True, True, False]
    for each in asked:
        assert await _tools(harness, each) == ONE


async def test_of_two_transactions_that_store_a_set_at_once_neither_waits(harness: Harness, locker: Locker) -> None:
    async with locker.connection.transaction():
        kept = await locker.connection.fetchrow("SELECT * FROM keep_tool_set($1, $2)", OWNER, _request(ONE))
        assert kept is not None
        assert kept["tool_set"] is not None
        async with asyncio.timeout(60):
            asked = await harness.ask(tools=ONE)
    assert await _is_inline(locker, asked.turn)
    assert await _tools(harness, asked) == ONE
    assert not await _is_inline(locker, (await harness.ask(tools=ONE)).turn)


def _request(tools: list[ToolSpec]) -> str:
    return to_json(TurnRequest("scripted", tools=tuple(tools)))


async def test_a_set_goes_hours_after_the_last_turn_that_had_it(harness: Harness, locker: Locker) -> None:
    kept, gone = await harness.ask(tools=ONE), await harness.ask(tools=TOOLS)
    await locker.connection.execute(OLD)
    assert await swept(unused_tool_sets(harness.database)) == 0
    await locker.connection.execute("DELETE FROM chats WHERE id = $1", gone.chat)
    await locker.connection.execute("UPDATE tool_sets SET used_at = now() - interval '119 minutes'")
    assert await swept(unused_tool_sets(harness.database)) == 0
    await locker.connection.execute(OLD)
    assert await swept(unused_tool_sets(harness.database)) == 1
    assert await _tools(harness, kept) == ONE
    assert await _tools(harness, await harness.ask(tools=TOOLS)) == TOOLS


async def test_a_turn_that_is_not_committed_keeps_its_set(harness: Harness, locker: Locker) -> None:
    """The set was last used long ago, or a moment ago by a turn that is deleted."""
    chat = (await harness.ask(tools=ONE)).chat
    await locker.connection.execute("DELETE FROM chats WHERE id = $1", chat)
    for last_used in ("3 hours", "59 minutes"):
        await locker.connection.execute("UPDATE tool_sets SET used_at = now() - $1::text::interval", last_used)
        async with locker.connection.transaction():
            kept = await locker.connection.fetchrow("SELECT * FROM keep_tool_set($1, $2)", OWNER, _request(ONE))
            assert kept is not None
            assert kept["tool_set"] is not None
            sweeping = asyncio.create_task(swept(unused_tool_sets(harness.database)))
            if last_used == "3 hours":
                await locker.waiting()
        assert await sweeping == 0
    assert await _sets(locker) == 1


async def test_a_turn_that_meets_the_sweep_stores_its_set_again(harness: Harness, locker: Locker) -> None:
    chat = (await harness.ask(tools=ONE)).chat
    await locker.connection.execute("DELETE FROM chats WHERE id = $1", chat)
    await locker.connection.execute(OLD)
    async with locker.connection.transaction():
        await locker.connection.execute("DELETE FROM tool_sets")
        asking = asyncio.create_task(harness.ask(tools=ONE))
        await locker.waiting()
    asked = await asking
    assert not await _is_inline(locker, asked.turn)
    assert await _tools(harness, asked) == ONE


async def test_an_archive_has_the_tools_and_an_import_stores_them_once(harness: Harness, locker: Locker) -> None:
    call = HttpCall("https://crm.example.com/", headers={"Authorization": "Bearer tok-123456"})
    tools = [*TOOLS, ToolSpec("crm", "Looks.", '{"type":"object"}', http=call)]
    asked = [await harness.ask(tools=tools) for _ in range(3)]
    export = OwnerExport(harness.database, OWNER)
    parts = [export.head, *[part async for part in export.parts()]]
    assert b"tool_set" not in b"".join(part.content for part in parts)
    assert not [part for part in parts if b"tok-123456" in part.content]
    async for _ in Owners(harness.database).erase(OWNER):
        pass
    assert await _sets(locker) == 0
    assert await Owners(harness.database).is_erased(OWNER)
    imports = OwnerImport(harness.database, None, lambda *_: False, lambda _: None, trusted=True)
    assert (await imports.run(iter(parts))).made["chats"] == 3
    assert await _sets(locker) == 1
    for each in asked:
        assert not await _is_inline(locker, each.turn)
        *same, masked = await _tools(harness, each)
        assert same == TOOLS
        assert masked.http is not None
        assert masked.http.headers == {"Authorization": "********"}


async def test_the_role_of_the_api_stores_sets_of_its_own_owner_alone(harness: Harness, locker: Locker) -> None:
    url = await embedded_api_url(harness.url)
    keep = Statement("SELECT tool_set FROM keep_tool_set(:owner, CAST(:request AS json))")
    async with connect(url, size=1, key=await admit(harness.url, url)) as api:
        with acting_for(OWNER):
            for owner, stores in (("bob", False), (OWNER, True)):
                row = await api.row(keep, owner=owner, request=_request(ONE))
                assert row is not None
                assert (row["tool_set"] is not None) == stores
        assert await _owners(harness.database) == [OWNER]
        with acting_for("bob"):
            assert await api.rows(Statement("SELECT owner FROM tool_sets")) == []


async def _owners(database: Database) -> list[str]:
    return [row["owner"] for row in await database.rows(Statement("SELECT owner FROM tool_sets"))]

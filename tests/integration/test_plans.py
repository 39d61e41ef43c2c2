"""What a statement reads does not grow with the database: the plans on fifty thousand turns, planned with the values of
the parameters and without.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import md5
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.kit.ids import new_id
from app.storage import activities, chat_changes, chats, exchanges, operations, search, turns, uploads
from app.storage.database import Statement
from app.storage.runs import queue

LONG_CHAT = 2_500  # exchanges, one behind the other
CHATS = 4_500
EXCHANGES = 5  # of each of the other chats
OWNERS = 90
RECENT = 200  # exchanges of the long chat whose calls were charged within the hour
BIG = {"turns", "blocks", "rounds", "chats", "charges", "tool_calls", "search_texts", "search_chats", "search_pending"}
LOAD = f"""
SET session_replication_role = replica;
CREATE FUNCTION id_of(kind text, chat int, number int) RETURNS uuid IMMUTABLE LANGUAGE sql
    AS $$ SELECT md5(kind || '-' || chat || '-' || number)::uuid $$;
CREATE TEMPORARY TABLE exchange AS
    SELECT chat, number, now() - interval '100 days' + (chat * 3000 + number) * interval '1 second' AS at
    FROM generate_series(0, {CHATS}) AS chat,
        generate_series(1, CASE chat WHEN 0 THEN {LONG_CHAT} ELSE {EXCHANGES} END) AS number;
INSERT INTO chats (id, owner, settings, created_at, updated_at)
    SELECT id_of('chat', chat, 0), 'owner-' || chat % {OWNERS}, '{{}}', min(at), max(at) FROM exchange GROUP BY chat;
INSERT INTO turns (id, chat_id, parent_id, role, status, created_at, ended_at)
    SELECT id_of('user', chat, number), id_of('chat', chat, 0),
        CASE WHEN number > 1 THEN id_of('assistant', chat, number - 1) END, 'user', 'complete', at, at
    FROM exchange;
INSERT INTO turns (id, chat_id, parent_id, role, status, request, attempt, stop_reason, created_at, ended_at)
    SELECT id_of('assistant', chat, number), id_of('chat', chat, 0), id_of('user', chat, number), 'assistant',
        'complete', '{{}}', 1, 'end_turn', at, at
    FROM exchange;
INSERT INTO rounds (turn_id, number, attempt, messages, started_at, sealed_by, sealed_at, stop_reason)
    SELECT id_of('assistant', chat, number), 1, 1, 1, at, 1, at, 'end_turn' FROM exchange;
INSERT INTO charges (turn_id, call, kind, owner, chat_id, model, input_tokens, cache_read_tokens, cache_write_tokens,
        output_tokens, cost, charged_at)
    SELECT id_of('assistant', chat, number), '1.1', 'round', 'owner-' || chat % {OWNERS}, id_of('chat', chat, 0), 'm',
        1, 0, 0, 1, 0.1, at - interval '60 days' FROM exchange WHERE chat > 0 OR number <= {LONG_CHAT - RECENT}
    ORDER BY at;
INSERT INTO charges (turn_id, call, kind, owner, chat_id, model, input_tokens, cache_read_tokens, cache_write_tokens,
        output_tokens, cost, charged_at)
    SELECT id_of('assistant', 0, number), '1.1', 'round', 'owner-0', id_of('chat', 0, 0), 'm', 1, 0, 0, 1, 0.1,
        now() - (({LONG_CHAT} - number) * 10) * interval '1 second'
    FROM generate_series({LONG_CHAT - RECENT + 1}, {LONG_CHAT}) AS number;
INSERT INTO tool_calls (turn_id, round, tool_use_id, name, attempt, state, started_at, settled_at)
    SELECT id_of('assistant', chat, number), 1, 'c', 'dig', 1, 'settled', at, at FROM exchange;
INSERT INTO blocks (turn_id, index, round, attempt, type, text)
    SELECT id_of('user', chat, number), 0, 0, 0, 'text', repeat('Is it far? ', 10) FROM exchange;
INSERT INTO blocks (turn_id, index, round, attempt, type, text)
    SELECT id_of('assistant', chat, number), index, 1, 1, 'text', repeat('It is not. ', 40)
    FROM exchange, generate_series(0, 2) AS index;
INSERT INTO uploads (id, owner, media_type, digest, content, created_at)
    SELECT id_of('upload', number, 0), 'owner-0', 'image/png', sha256(number::text::bytea), '', now() - interval '9 d'
    FROM generate_series(1, 20) AS number;
INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
    SELECT id_of('user', number, 1), 1, 0, 0, 'image', '', json_build_object('upload', id_of('upload', number, 0))
    FROM generate_series(1, 10) AS number;
INSERT INTO search_segments (id, owner, chats) SELECT number, 'owner-' || number, 51
    FROM generate_series(0, {OWNERS} - 1) AS number;
INSERT INTO search_chats (chat_id, owner, segment, language, tool_results, form, created_at, added_at, title)
    SELECT id, owner, substr(owner, 7)::bigint, 'simple', false, 'simple', created_at, created_at, '' FROM chats;
INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, false, owner, segment, 'simple', turns.created_at, turns.created_at,
        array_to_tsvector(ARRAY[md5(turns.id::text), role] || ARRAY(
            SELECT 'word' || number FROM generate_series(1, 60) AS number
        ))
    FROM turns JOIN search_chats USING (chat_id);
UPDATE search_segments SET vocabulary = (
    SELECT array_to_tsvector(array_agg('word' || number) || ARRAY['user', 'assistant'])
    FROM generate_series(1, 60) AS number
), covered_until = now() WHERE id > 1;
INSERT INTO search_segments (id, owner, chats, covered_until, vocabulary) SELECT 1000 + part, 'heavy', 250, now(), (
    SELECT array_to_tsvector(array_agg(md5((part * 10000 + number)::text))) FROM generate_series(1, 5000) AS number
) FROM generate_series(1, 120) AS part;
INSERT INTO search_pending (owner, chat_id, turn_id, added_at)
    SELECT 'owner-' || chat % {OWNERS}, id_of('chat', chat, 0), id_of(role, chat, number), at
    FROM exchange, unnest(ARRAY['user', 'assistant']) AS role ORDER BY at;
SET session_replication_role = DEFAULT;
"""


def _md5(kind: str, chat: int, number: int = 0) -> UUID:
    return UUID(md5(f"{kind}-{chat}-{number}".encode(), usedforsecurity=False).hexdigest())


CHAT, SMALL, OWNER = _md5("chat", 0), _md5("chat", 7), "owner-7"
LAST, NOW = _md5("assistant", 0, LONG_CHAT), datetime.now(UTC)
PAGE = [_md5(role, 0, number) for number in range(LONG_CHAT - 49, LONG_CHAT + 1) for role in ("user", "assistant")]
WHOLE = [_md5(role, 0, number) for number in range(1, LONG_CHAT + 1) for role in ("user", "assistant")]


def searched(owner: str, *words: str) -> Mapping[str, Any]:
    """The values of a search."""
    filters = dict.fromkeys(("since", "until", "only", "score", "before", "before_id"))
    return {"owner": owner, "words": words, "first": search.NEWEST, "tools": False, "limit": 51, **filters}


# The statement, its values, and the most pages of 8 kB that it may touch. A look into an index takes about four.
CASES: Mapping[str, tuple[Statement, Mapping[str, Any], int]] = {
    "the newest turn": (turns.GET_NEWEST, {"owner": "owner-0", "chat": CHAT}, 20),
    "the newest turn of a message": (exchanges.GET_NEWEST_OF_CHAT, {"chat": CHAT}, 20),
    "the chat and the newest turn": (exchanges.GET_CHAT_AND_NEWEST, {"owner": "owner-0", "chat": CHAT}, 30),
    "what is new in a chat, from its end": (
        chat_changes.GET_NEWS,
        {"chat": CHAT, "since": NOW, "place": 2**60, "limit": 50},
        20,
    ),
    "what is new in a chat, from its beginning": (
        chat_changes.GET_NEWS,
        {"chat": CHAT, "since": datetime(2020, 1, 1, tzinfo=UTC), "place": 0, "limit": 50},
        150,
    ),
    "the last place": (chat_changes.GET_LAST_PLACE, {"chat": CHAT}, 20),
    "the last place and what is open": (chat_changes.GET_LAST_AND_OPEN, {"chat": CHAT}, 30),
    "the newest answer": (chat_changes.GET_NEWEST_ANSWER, {"chat": CHAT, "question": PAGE[-2]}, 20),
    "siblings of a page": (turns.GET_SIBLINGS, {"turns": PAGE}, 1200),
    "a page of the path": (
        turns.GET_PATH,
        {"owner": "owner-0", "chat": CHAT, "leaf": LAST, "limit": 100, "bytes": 10**9},
        4000,
    ),
    "blocks of a page": (turns.GET_BLOCKS, {"turns": PAGE}, 800),
    "blocks of the whole path": (turns.GET_BLOCKS, {"turns": WHOLE}, 8 * len(WHOLE)),
    "rounds of the whole path": (turns.GET_ROUNDS, {"turns": WHOLE}, 8 * len(WHOLE)),
    "a list of chats": (chats.LIST_CHATS, {"owner": OWNER, "limit": 50, "before": None, "before_id": None}, 400),
    "the queue": (queue.CLAIM_TURNS, {"replica": new_id(), "step": 1, "limit": 50}, 20),
    # An owner of 51 chats; of 51 of which one is long; of 120 segments, of which one search looks at a hundred.
    "a search for nothing": (search.SEARCH_CHATS, searched(OWNER, "nothing"), 200),
    "a search for nothing where all words must be read": (search.SEARCH_CHATS, searched("owner-0", "nothing"), 2500),
    "a search for nothing in a hundred segments": (search.SEARCH_CHATS, searched("heavy", "nothing"), 6000),
    "a search for the most frequent word": (search.SEARCH_CHATS, searched(OWNER, "word1"), 1500),
    "a search for the beginning of all words": (search.SEARCH_CHATS, searched("owner-0", "w"), 3500),
    "a search for a frequent word and one that is nowhere": (
        search.SEARCH_CHATS,
        searched(OWNER, "word1", "nothing"),
        400,
    ),
    "the oldest text that is not indexed": (search.GET_OLDEST_PENDING, {}, 10),
    "indexing a hundred texts": (search.INDEX_PENDING, {"most": 100}, 7000),
    "indexing fifty texts of an owner": (search.INDEX_PENDING_OF, {"owner": OWNER, "most": 50}, 5000),
    # Of the last hour, with the pages of the ledger that one entry of its index stands for.
    "the calls of an hour, by minutes": (operations.GET_MINUTES, {}, 300),
    "the sampled calls of an hour": (operations.GET_SAMPLE, {}, 300 + 4 * RECENT),
    "the slow tools of an hour": (operations.GET_TOOLS, {}, 300 + 5 * RECENT),
    "the failed turns of an hour": (operations.GET_FAILURES, {}, 20),
    "the replicas": (operations.GET_REPLICAS, {}, 50),
    "the open turns of a status": (activities.OPEN_TURNS, {"status": "waiting", "limit": 50, "most": None}, 50),
    "the sweep of uploads": (uploads.SWEEP, {"kept": 3600.0}, 50),
}


@pytest.fixture(scope="module")
def large_database_url(shared_database_url: str) -> str:
    async def load() -> None:
        connection = await asyncpg.connect(shared_database_url)
        await connection.execute(LOAD)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()

    asyncio.run(load())
    return shared_database_url


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("case", CASES)
async def test_a_statement_reads_what_it_is_about(large_database_url: str, case: str, mode: str) -> None:
    statement, values, most = CASES[case]
    connection = await asyncpg.connect(large_database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        if statement is search.SEARCH_CHATS:  # the first time it reads the catalogs too
            await connection.fetch(statement.sql, *statement.arguments(dict(values)))
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.sql}"
        (row,) = await connection.fetch(explain, *statement.arguments(dict(values)))
    finally:
        await transaction.rollback()
        await connection.close()
    (explained,) = json.loads(row[0])
    plan = explained["Plan"]
    scanned = {
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG and node["Actual Loops"]
    }
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert (scanned, pages <= most) == (set(), True), f"{pages} pages: {json.dumps(plan, indent=1)}"

"""What a statement reads does not grow with the database: the plans on fifty thousand turns, planned with the values of
the parameters and without.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.support.large_database import Size, load_sql, row_id
from turnstream.kit.ids import new_id
from turnstream.storage import activities, operations
from turnstream.storage.chats import chat_changes, chats, exchanges, search, turns
from turnstream.storage.database import Statement
from turnstream.storage.owners import document_search, owner_changes
from turnstream.storage.runs import queue

SIZE = Size()
BIG = {
    *("turns", "blocks", "rounds", "chats", "charges", "tool_calls"),
    *("search_texts", "search_chats", "search_pending", "documents", "search_documents"),
}


CHAT, SMALL, OWNER = row_id("chat", 0), row_id("chat", 7), "owner-7"
LAST, NOW = row_id("assistant", 0, SIZE.long_chat), datetime.now(UTC)
WHOLE = [row_id(role, 0, number) for number in range(1, SIZE.long_chat + 1) for role in ("user", "assistant")]
PAGE = WHOLE[-100:]


def searched(owner: str, *words: str) -> Mapping[str, Any]:
    """The values of a search."""
    filters = dict.fromkeys(("since", "until", "only", "score", "before", "before_id"))
    return {"owner": owner, "words": words, "first": search.NEWEST, "tools": False, "limit": 51, **filters}


def searched_documents(*words: str) -> Mapping[str, Any]:
    return {"owner": OWNER, "words": words, "prefix": "", "limit": 50}


# The first answers of all chats become turns in the queue: the last one is Bob's, the others are Ada's.
QUEUE = """
UPDATE turns SET status = 'queued', ended_at = NULL, stop_reason = NULL,
    queue_owner = CASE WHEN turns.created_at = last THEN 'bob' ELSE 'ada' END
    FROM turns AS message, (SELECT max(created_at) AS last FROM turns WHERE role = 'user' AND parent_id IS NULL) AS each
    WHERE message.id = turns.parent_id AND message.parent_id IS NULL AND turns.role = 'assistant';
ANALYZE turns;
"""
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
    "the turns that a cursor names": (
        chat_changes.GET_TURNS_AT,
        {"chat": CHAT, "times": [NOW, datetime(2020, 1, 1, tzinfo=UTC)], "places": [2**50, 7]},
        50,
    ),
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
    "what has changed for an owner": (
        owner_changes.GET_CHANGED_CHATS,
        {"owner": OWNER, "since": NOW, "most": None, "known": [], "known_at": []},
        100,
    ),
    "the queue": (queue.CLAIM_TURNS, {"replica": new_id(), "step": 1, "limit": 50, "suspects": 0}, 20),
    "the queue with suspects": (queue.CLAIM_TURNS, {"replica": new_id(), "step": 1, "limit": 50, "suspects": 1}, 40),
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
    # The same owners, and words that have the parts inside.
    "a search inside of words for nothing": (search.SEARCH_INSIDE, searched(OWNER, "nothing"), 100),
    "a search inside of words that must all be read": (search.SEARCH_INSIDE, searched("owner-0", "nothing"), 2500),
    "a search inside of words in a hundred segments": (search.SEARCH_INSIDE, searched("heavy", "nothing"), 6000),
    "a search for a part of all words": (search.SEARCH_INSIDE, searched(OWNER, "ord"), 800),
    "a search for a part of all words in a long chat": (search.SEARCH_INSIDE, searched("owner-0", "ord"), 5000),
    "a search for a part of all words and one of none": (search.SEARCH_INSIDE, searched(OWNER, "ord", "nothing"), 100),
    # Of an owner of 100 documents among 9,000.
    "a search of documents for nothing": (
        document_search.SEARCH_OWNERS_DOCUMENTS,
        searched_documents("nothing"),
        1000,
    ),
    "a search of documents for a word of all": (
        document_search.SEARCH_OWNERS_DOCUMENTS,
        searched_documents("word1"),
        1000,
    ),
    "excerpts of documents": (
        document_search.GET_DOCUMENT_EXCERPTS,
        {
            "owner": OWNER,
            "paths": [f"notes/{7 + SIZE.owners * number}.md" for number in range(1, 51)],
            "words": ["word1"] * 50,
            "margin_before": 40,
            "margin_after": 140,
        },
        1000,
    ),
    "the sweep of documents": (search.CATCH_UP_DOCUMENTS, {"most": 10}, 50),
    "the oldest text that is not indexed": (search.GET_OLDEST_PENDING, {}, 10),
    "indexing a hundred texts": (search.INDEX_PENDING, {"most": 100}, 7000),
    "indexing fifty texts of an owner": (search.INDEX_PENDING_OF, {"owner": OWNER, "most": 50}, 5000),
    # Of the last hour, with the pages of the ledger that one entry of its index stands for.
    "the calls of an hour, by minutes": (operations.GET_MINUTES, {}, 300),
    "the sampled calls of an hour": (operations.GET_SAMPLE, {}, 300 + 4 * SIZE.recent),
    "the slow tools of an hour": (operations.GET_TOOLS, {}, 300 + 5 * SIZE.recent),
    "the failed turns of an hour": (operations.GET_FAILURES, {}, 20),
    "the replicas": (operations.GET_REPLICAS, {}, 50),
    "the open turns of a status": (activities.OPEN_TURNS, {"status": "waiting", "limit": 50, "most": None}, 50),
}


FUNCTIONS = {
    *(search.SEARCH_CHATS, search.SEARCH_INSIDE, search.CATCH_UP_DOCUMENTS),
    document_search.SEARCH_OWNERS_DOCUMENTS,
}


@pytest.fixture(scope="module")
def large_database_url(shared_database_url: str) -> str:
    async def load() -> None:
        connection = await asyncpg.connect(shared_database_url)
        await connection.execute(load_sql(SIZE))
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
        if statement in FUNCTIONS:  # the first time it reads the catalogs too
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
    print("PAGES", case, pages, plan["Actual Total Time"])
    assert (scanned, pages <= most) == (set(), True), f"{pages} pages: {json.dumps(plan, indent=1)}"


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_claim_shares_out_a_queue_with_thousands_of_turns_of_one_owner(
    large_database_url: str, mode: str
) -> None:
    connection = await asyncpg.connect(large_database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(QUEUE)
        await connection.execute(f"SET plan_cache_mode = {mode}")
        values = {"replica": new_id(), "step": 1, "limit": 50, "most": 100, "suspects": 1}
        statement = queue.CLAIM_TURNS_FAIRLY
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.sql}"
        (row,) = await connection.fetch(explain, *statement.arguments(dict(values)))
        claimed = await connection.fetch("SELECT queue_owner FROM turns WHERE status = 'running'")
        assert Counter(row["queue_owner"] for row in claimed) == {"ada": 49, "bob": 1}
    finally:
        await transaction.rollback()
        await connection.close()
    (explained,) = json.loads(row[0])
    scanned = [node["Node Type"] for node in nodes(explained["Plan"]) if node.get("Relation Name") == "turns"]
    assert "Seq Scan" not in scanned

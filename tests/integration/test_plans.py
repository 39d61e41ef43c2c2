"""The reads of a statement do not grow with the database. The plans are for fifty thousand turns, at the first
execution and at the sixth, for which Postgres may choose a generic plan.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.support.large_database import Size, load_sql, row_id
from tests.support.plans import EXECUTIONS, Execution, nodes, plan_of
from turnstream.extensions.admin import operations
from turnstream.extensions.chat_stream import rows as news
from turnstream.extensions.feed.rows import GET_CHANGED_CHATS
from turnstream.extensions.simple_search import search
from turnstream.kit.ids import new_id
from turnstream.libraries.explanations.rows import OPEN_TURNS
from turnstream.storage.chats import chat_changes, chats, exchanges, turns
from turnstream.storage.database import Statement
from turnstream.storage.runs import queue

SIZE = Size()
BIG = {
    *("turns", "blocks", "rounds", "chats", "charges", "tool_calls"),
    *("search_texts", "search_chats", "search_pending", "documents", "search_documents"),
    *("schedules", "schedule_runs"),
}


CHAT, SMALL, OWNER = row_id("chat", 0), row_id("chat", 7), "owner-7"
LAST, NOW = row_id("assistant", 0, SIZE.long_chat), datetime.now(UTC)
WHOLE = [row_id(role, 0, number) for number in range(1, SIZE.long_chat + 1) for role in ("user", "assistant")]
PAGE = WHOLE[-100:]


def found(owner: str, word: str) -> Mapping[str, Any]:
    """Returns the values of a simple search."""
    filters = dict.fromkeys(("since", "until", "only", "before", "before_id"))
    window = {"word": word, "margin_before": 40, "length": 200}
    return {"owner": owner, "sought": f"'{word}':*", "limit": 51, **window, **filters}


# Puts the first answer of each chat into the queue. The last answer is Bob's, the others are Ada's.
QUEUE = """
UPDATE turns SET status = 'queued', ended_at = NULL, stop_reason = NULL,
    queue_owner = CASE WHEN turns.created_at = last THEN 'bob' ELSE 'ada' END
    FROM turns AS message, (SELECT max(created_at) AS last FROM turns WHERE role = 'user' AND parent_id IS NULL) AS each
    WHERE message.id = turns.parent_id AND message.parent_id IS NULL AND turns.role = 'assistant';
ANALYZE turns;
"""
# For each case: the statement, its values, and the most 8 kB pages that it may touch. An index lookup takes about four
# pages.
CASES: Mapping[str, tuple[Statement, Mapping[str, Any], int]] = {
    "the newest turn": (turns.GET_NEWEST, {"owner": "owner-0", "chat": CHAT}, 20),
    "the newest turn of a message": (exchanges.GET_NEWEST_OF_CHAT, {"chat": CHAT}, 20),
    "the chat and the newest turn": (exchanges.GET_CHAT_AND_NEWEST, {"owner": "owner-0", "chat": CHAT}, 30),
    "what is new in a chat, from its end": (
        news.GET_NEWS,
        {"chat": CHAT, "since": NOW, "place": 2**60, "limit": 50},
        20,
    ),
    "what is new in a chat, from its beginning": (
        news.GET_NEWS,
        {"chat": CHAT, "since": datetime(2020, 1, 1, tzinfo=UTC), "place": 0, "limit": 50},
        400,  # all turns of the chat: most chats are short, and the generic plan is made for a short chat
    ),
    "the turns that a cursor names": (
        news.GET_TURNS_AT,
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
        GET_CHANGED_CHATS,
        {"owner": OWNER, "since": NOW, "most": None, "known": [], "known_at": []},
        100,
    ),
    "the queue": (queue.CLAIM_TURNS, {"replica": new_id(), "step": 1, "limit": 50, "suspects": 0}, 20),
    "the queue with suspects": (queue.CLAIM_TURNS, {"replica": new_id(), "step": 1, "limit": 50, "suspects": 1}, 40),
    # The simple search may read all messages of the owner: 250 of the 25,000 that people wrote, and 250 answers.
    "a simple search for nothing": (search.FIND_CHATS, found(OWNER, "nothing"), 3000),
    "a simple search for the most frequent word": (search.FIND_CHATS, found(OWNER, "word1"), 4000),
    "a simple search of documents": (
        search.FIND_DOCUMENTS,
        {**found(OWNER, "word1"), "prefix": ""},
        1000,
    ),
    # The last hour, and the pages of the ledger that one entry of its index covers.
    "the calls of an hour, by minutes": (operations.GET_MINUTES, {}, 300),
    "the sampled calls of an hour": (operations.GET_SAMPLE, {}, 300 + 4 * SIZE.recent),
    "the slow tools of an hour": (operations.GET_TOOLS, {}, 300 + 5 * SIZE.recent),
    "the failed turns of an hour": (operations.GET_FAILURES, {}, 20),
    "the replicas": (operations.GET_REPLICAS, {}, 50),
    "the open turns of a status": (OPEN_TURNS, {"status": "waiting", "limit": 50, "most": None}, 50),
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


async def check_reads(
    url: str, statement: Statement, values: Mapping[str, Any], most: int, execution: Execution, *, warm: bool = False
) -> None:
    """Fails if the statement scans a large table, or touches more than `most` pages."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        if warm:  # the first execution of a function also reads the catalogs
            await connection.fetch(statement.sql, *statement.arguments(dict(values)))
        plan = await plan_of(connection, statement, values, execution)
    finally:
        await transaction.rollback()
        await connection.close()
    scanned = {
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG and node["Actual Loops"]
    }
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert (scanned, pages <= most) == (set(), True), f"{pages} pages: {json.dumps(plan, indent=1)}"


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("case", CASES)
async def test_a_statement_reads_only_its_own_rows(large_database_url: str, case: str, execution: Execution) -> None:
    await check_reads(large_database_url, *CASES[case], execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
async def test_a_claim_shares_out_a_queue_with_thousands_of_turns_of_one_owner(
    large_database_url: str, execution: Execution
) -> None:
    connection = await asyncpg.connect(large_database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(QUEUE)
        values = {"replica": new_id(), "step": 1, "limit": 50, "most": 100, "suspects": 1}
        plan = await plan_of(connection, queue.CLAIM_TURNS_FAIRLY, values, execution)
        claimed = await connection.fetch("SELECT queue_owner FROM turns WHERE status = 'running'")
        assert Counter(row["queue_owner"] for row in claimed) == {"ada": 49, "bob": 1}
    finally:
        await transaction.rollback()
        await connection.close()
    scanned = [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "turns"]
    assert "Seq Scan" not in scanned

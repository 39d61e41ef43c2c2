"""The cost of calls in a large database (a million turns, four million blocks) and in a small database (50,000 turns).
Each database has a chat of 5,000 turns, and an owner with 120 search segments.
"""

import asyncio
import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import median

import asyncpg

from tests.bench.candidates import Server
from tests.bench.database import Postgres, new_database
from tests.bench.scenarios import FaultError
from tests.bench.trials import Rows, Site
from tests.support.large_database import Size, load_sql, row_id
from turnstream.domain.identity import OF_A_PERSON, Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

SMALL = Size(pending=False)
LARGE = Size(chats=99_500, owners=1_990, answer_blocks=7, pending=False)
SEARCH_TARGET = 100.0  # ms
_OWNERS = ("owner-0", "heavy")
_REST = 10.0  # seconds without any request
_CHAT, _LAST = row_id("chat", 0), row_id("assistant", 0, SMALL.long_chat)

# For each call: its owner and its path.
CALLS: Mapping[str, tuple[str, str]] = {
    "the list of chats": ("owner-0", "/api/chats"),
    "the newest page of a chat of 5,000 turns": ("owner-0", f"/api/chats/{_CHAT}/turns"),
    "a page in its middle": (
        "owner-0",
        f"/api/chats/{_CHAT}/turns?before={row_id('user', 0, SMALL.long_chat // 2)}",
    ),
    "the stream of an answer that has ended": ("owner-0", f"/api/chats/{_CHAT}/turns/{_LAST}/stream"),
    "what an owner used this month": ("owner-0", "/api/usage"),
    "a search for a word that is everywhere": ("owner-0", "/api/chats?q=word1"),
    "a search for two such words": ("owner-0", "/api/chats?q=word1+word2"),
    "a search that finds nothing": ("owner-0", "/api/chats?q=nothing"),
    "the same in 120 segments": ("heavy", "/api/chats?q=nothing"),
    "a search for a part inside of a word that is everywhere": ("owner-0", "/api/chats?q=ord1"),
    "a search of documents that finds nothing": ("owner-0", "/api/documents?q=nothing"),
}

# The load drops the indexes and creates them again after the inserts. This takes a third of the time.
_INDEXES = """
    SELECT indexrelid::regclass AS name, pg_get_indexdef(indexrelid) AS definition
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
    WHERE relnamespace = current_schema()::regnamespace AND NOT indisunique
        AND relname IN ('turns', 'blocks', 'charges', 'search_texts')
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A server on a database, with one token for each owner."""

    server: Server
    database: Postgres
    tokens: Mapping[str, str]

    def milliseconds(self, owner: str, path: str) -> float:
        headers = {"Authorization": f"Bearer {self.tokens[owner]}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)) as connection:
            connection.connect()
            began = time.perf_counter()
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            took = time.perf_counter() - began
        if response.status != http.HTTPStatus.OK:
            raise FaultError(f"{path}: {response.status} {body[:200]!r}")
        return took * 1000


def large(times: int) -> Callable[[Site], Rows]:
    """Sends each call `times` times to each database, alternately, and compares the medians."""

    def run(site: Site) -> Rows:
        with _served(site, SMALL) as small, _served(site, LARGE) as big:
            rows: dict[str, tuple[float | None, ...]] = {
                f"{name}, ms": _compared(small, big, call, times) for name, call in CALLS.items()
            }
            at_rest = _at_rest(small, big)
        return rows | {"Postgres at rest, CPU ms in a second": at_rest}

    return run


def _compared(small: Target, big: Target, call: tuple[str, str], times: int) -> tuple[float | None, ...]:
    for target in (small, big):  # a first call has extra costs, and is not measured
        target.milliseconds(*call)
    pairs = [(small.milliseconds(*call), big.milliseconds(*call)) for _ in range(times)]
    few, many = (median(figures) for figures in zip(*pairs, strict=True))
    return few, many, many / few, SEARCH_TARGET if "q=" in call[1] else None


def _at_rest(small: Target, big: Target) -> tuple[float | None, ...]:
    """Measures the sweeps and the upkeep of the search, without any request."""
    before = [target.database.backend_seconds() for target in (small, big)]
    time.sleep(_REST)
    after = [target.database.backend_seconds() for target in (small, big)]
    few, many = ((last - first) / _REST * 1000 for first, last in zip(before, after, strict=True))
    return few, many, many / few if few else None, None


@contextmanager
def _served(site: Site, size: Size) -> Iterator[Target]:
    with new_database(site.database.url) as database:
        site = Site(site.provider, database, site.folder)
        with site.served():  # the start of a server migrates the database
            pass
        asyncio.run(_load(database.url, size))
        with site.served() as server:
            yield Target(server, database, asyncio.run(_tokens(database.url)))


async def _load(url: str, size: Size) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET maintenance_work_mem = '1GB'; SET synchronous_commit = off")
        indexes = await connection.fetch(_INDEXES)
        for index in indexes:
            await connection.execute(f"DROP INDEX {index['name']}")
        await connection.execute(load_sql(size))
        for index in indexes:
            await connection.execute(index["definition"])
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _tokens(url: str) -> Mapping[str, str]:
    async with connect(url, size=1) as database:
        tokens = Tokens(database)
        return {owner: await tokens.create(owner, Identity(owner, OF_A_PERSON)) for owner in _OWNERS}

"""The cost of turns in Postgres: CPU, bytes of tables with their indexes, and bytes of the write-ahead log (WAL).

There are two loads, one with short turns and one with long turns. The difference between them is the cost of the text.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import asyncpg

from tests.bench.candidates import Server
from tests.bench.database import Postgres
from tests.bench.scenarios import OPENINGS, faultless, paced, warm_up
from tests.bench.trials import Rows, Site

_SHORT = 2  # deltas of a short turn
_LEAST = 50  # bytes per turn; smaller tables are counted together as other tables
_EMPTIED = ("journal_ticks", "open_text", "search_pending")  # rows that live only during a turn; their space is reused

# The text of blocks is what users and models have written.
_WRITTEN = """
    SELECT relname AS name, pg_total_relation_size(relid) AS bytes FROM pg_stat_user_tables
    UNION ALL SELECT 'WAL', pg_current_wal_insert_lsn() - '0/0'::pg_lsn
    UNION ALL SELECT 'text', sum(octet_length(text)) FROM blocks
"""


def storage(turns: int, deltas: int) -> Callable[[Site], Rows]:
    """Runs `turns` turns in new chats: first with two deltas each, and then with `deltas` each."""

    def run(site: Site) -> Rows:
        with site.served() as server:
            warm_up(server)
            short, long = (_left_by(turns, count, server, site.database) for count in (_SHORT, deltas))
        text = long.pop("text") - short.pop("text")
        cpu = (short.pop("CPU"), long.pop("CPU"), None)
        kept = sorted(long.keys() - {"WAL", *_EMPTIED}, key=lambda name: -long[name])
        few = [name for name in kept if long[name] < _LEAST]
        groups: dict[str, Sequence[str]] = {name: [name] for name in kept if name not in few}
        groups |= {"other tables": few, "all these": kept, "space that is used again": _EMPTIED, "WAL": ["WAL"]}
        rows: dict[str, tuple[float | None, ...]] = {}
        for group, names in groups.items():
            least, most = (sum(left[name] for name in names) for left in (short, long))
            rows[group] = (least, most, (most - least) / text)
        return rows | {"CPU of Postgres, ms": cpu}

    return run


def _left_by(turns: int, deltas: int, server: Server, database: Postgres) -> dict[str, float]:
    """Returns the growth of Postgres per turn."""
    before, cpu = asyncio.run(_written(database.url)), database.cpu_seconds()
    faultless(server.run(paced(turns, deltas, turns / OPENINGS)))
    cpu, after = database.cpu_seconds() - cpu, asyncio.run(_written(database.url))
    return {name: (after[name] - before[name]) / turns for name in after} | {"CPU": cpu / turns * 1e3}


async def _written(url: str) -> Counter[str]:
    connection = await asyncpg.connect(url)
    try:
        return Counter({row["name"]: int(row["bytes"] or 0) for row in await connection.fetch(_WRITTEN)})
    finally:
        await connection.close()

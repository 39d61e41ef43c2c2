"""The cache of tool results: answers of read-only tools with a declared lifetime, separately for each owner."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from turnstream.storage.contents import SealedColumns
from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.rows import from_json, to_json

TOOL_CACHE: Final = SealedColumns("tool_cache", ("key",), {"content": "text", "client_data": "json"})
GET_CACHED = Statement(
    """
    SELECT content, client_data, extract(epoch FROM now() - stored_at)::float8 AS age FROM tool_cache
    WHERE owner = :owner AND key = :key AND expires_at > now()
    """,
    opens=[TOOL_CACHE],
)
PUT_CACHED = Statement(
    """
    INSERT INTO tool_cache (owner, key, tool, content, client_data, size, expires_at)
    VALUES (
        :owner, :key, :tool, :content, CAST(:client_data AS json), :size, now() + make_interval(secs => :seconds)
    )
    ON CONFLICT (owner, key) DO UPDATE
    SET content = EXCLUDED.content, client_data = EXCLUDED.client_data, size = EXCLUDED.size,
        stored_at = EXCLUDED.stored_at, expires_at = EXCLUDED.expires_at
    RETURNING key
    """,
    seals=[TOOL_CACHE],
)
# Deletes the oldest answers beyond the limits.
EVICT = Statement(
    """
    WITH ranked AS (
        SELECT key, row_number() OVER newest AS place, sum(size) OVER newest AS total
        FROM tool_cache WHERE owner = :owner WINDOW newest AS (ORDER BY stored_at DESC, key)
    )
    DELETE FROM tool_cache USING ranked
    WHERE owner = :owner AND tool_cache.key = ranked.key AND (place > :rows OR total > :bytes)
    RETURNING tool_cache.key
    """
)
SWEEP_CACHE = Statement(
    """
    DELETE FROM tool_cache WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM tool_cache WHERE expires_at <= now() ORDER BY expires_at LIMIT :most
    ))
    RETURNING key
    """,
    timeout=LONG,
)
_STEP = 100  # results that a sweep deletes at once


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The whole text of a result and its data for clients. `age` is in seconds."""

    text: str
    client_data: Any = None
    age: float = 0.0


class ToolCache:
    """Each owner has up to `rows` results with `bytes` bytes in total; the oldest are removed first."""

    def __init__(self, database: Database, *, rows: int = 1000, bytes: int = 10_000_000) -> None:
        self._database = database
        self._rows = rows
        self._bytes = bytes

    async def get(self, owner: str, key: bytes) -> CachedResult | None:
        """Returns a cached answer, or None if it is missing or expired."""
        row = await self._database.row(GET_CACHED, owner=owner, key=key)
        return None if row is None else CachedResult(row["content"], from_json(row["client_data"]), row["age"])

    async def put(self, owner: str, key: bytes, tool: str, result: CachedResult, seconds: float) -> None:
        data = None if result.client_data is None else to_json(result.client_data)
        size = len(result.text.encode()) + len(data or "")
        if size > self._bytes:
            return
        values = {"tool": tool, "content": result.text, "client_data": data, "size": size, "seconds": seconds}
        await self._database.row(PUT_CACHED, owner=owner, key=key, **values)
        await self._database.rows(EVICT, owner=owner, rows=self._rows, bytes=self._bytes)

    async def sweep(self) -> AsyncGenerator[int, None]:
        """Deletes expired answers."""
        while gone := await self._database.rows(SWEEP_CACHE, most=_STEP):
            yield len(gone)

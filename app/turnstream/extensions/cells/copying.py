"""Copies rows from one database to another, in the form in which they are stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from turnstream.storage.database import Statement, Transaction, limit_of, prepared


async def copy_rows(
    source: Transaction, target: Transaction, table: str, columns: Sequence[str], statement: Statement, **values: Any
) -> int:
    """Copies the rows that `statement` returns into `table` of another database, and returns the number of rows."""
    reader, writer = source.raw, target.raw
    sql, arguments = prepared(statement, values, source.key)
    chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=8)

    async def read() -> None:
        try:
            await reader.copy_from_query(sql, *arguments, output=chunks.put, format="binary", timeout=statement.timeout)
        finally:
            await chunks.put(None)

    async def read_chunks() -> AsyncIterator[bytes]:
        while (chunk := await chunks.get()) is not None:
            yield chunk

    reading = asyncio.create_task(read())
    try:
        with limit_of(statement, reader, writer):
            written: str = await writer.copy_to_table(
                table, columns=columns, source=read_chunks(), format="binary", timeout=statement.timeout
            )
            await reading
    finally:
        reading.cancel()
    return int(written.rpartition(" ")[2])

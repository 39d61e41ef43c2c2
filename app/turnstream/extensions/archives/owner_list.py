"""The command `turnstream owners list`: the owners in a database, and how many rows each has."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from turnstream.extension import read_settings
from turnstream.libraries.command_tables import print_table
from turnstream.setup.databases import open_present_database
from turnstream.storage.database import LONG, Database, Statement

LIST_OWNERS = Statement(
    """
    WITH kept AS (
        SELECT owner, 1 AS chats, 0 AS uploads, 0 AS bytes, 0 AS documents, 0 AS tokens, updated_at AS at FROM chats
        UNION ALL
        SELECT owner, 0, 1, length(content), 0, 0, created_at FROM uploads
        UNION ALL
        SELECT owner, 0, 0, 0, 1, 0, updated_at FROM documents
        UNION ALL
        SELECT owner, 0, 0, 0, 0, 1, created_at FROM tokens
    )
    SELECT owner, sum(chats) AS chats, sum(uploads) AS uploads, sum(bytes)::bigint AS bytes,
        sum(documents) AS documents, sum(tokens) AS tokens, max(at) AS changed_at
    FROM kept GROUP BY owner ORDER BY owner
    """,
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class OwnerInfo:
    """An owner, with the numbers of the owner's rows. `bytes` is the total size of the uploads."""

    owner: str
    chats: int
    uploads: int
    bytes: int
    documents: int
    tokens: int
    changed_at: datetime


async def owners_of(database: Database) -> Sequence[OwnerInfo]:
    return [OwnerInfo(**dict(row)) for row in await database.rows(LIST_OWNERS)]


@click.command("list")
def list_owners() -> None:
    """List every owner, with what they have.

    The columns are chats, uploads and their bytes, documents, tokens, last change.
    """

    async def run() -> None:
        async with open_present_database(read_settings()) as database:
            print_table(map(_cells, await owners_of(database)))

    asyncio.run(run())


def _cells(each: OwnerInfo) -> list[str]:
    counts = {
        "chats": each.chats,
        "uploads": each.uploads,
        "bytes": each.bytes,
        "documents": each.documents,
        "tokens": each.tokens,
    }
    return [each.owner, *(f"{count} {name}" for name, count in counts.items()), f"{each.changed_at:%Y-%m-%d}"]

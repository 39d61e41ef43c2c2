"""Erases all data of an owner, in small steps."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from turnstream.libraries.erasure.owners import Owners
from turnstream.storage.chats.turns import CANCEL_TURN
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import to_json
from turnstream.storage.runs.queue import CANCEL, NOTIFY

# Seconds to wait until cancelled turns have ended.
_PATIENCE = 15.0
_LOOK = 0.2  # seconds

# The request for the erasure is deleted when the audit entry is written. Until then, another replica repeats an
# interrupted erasure.
END_ERASURE = Statement(
    """
    WITH ended AS (DELETE FROM erasures WHERE owner = :owner RETURNING owner)
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT 'owner.erased', CAST(:owner AS text), nullif(current_setting('turnstream.actor', true), ''),
        CAST(:erased AS json)
    WHERE :any OR EXISTS (SELECT FROM ended)
    """
)


async def nothing_elsewhere(_owner: str) -> None:
    """Does nothing: the default if no data is stored outside of the database."""


async def erase_owner(
    database: Database,
    owner: str,
    delete_files: Callable[[UUID], int],
    believed: float,
    before: Callable[[str], Awaitable[None]] = nothing_elsewhere,
) -> Counter[str]:
    """Erases the data of the owner, and returns the number of erased rows per table. Running turns are cancelled first.
    `delete_files` deletes a turn's files on this machine, and returns their number. `before` is called while the rows
    still exist. Servers trust a deleted token or session for `believed` seconds, and may write during this time. The
    next call completes an interrupted erasure.
    """
    erased: Counter[str] = Counter()
    stored, loop = Owners(database), asyncio.get_running_loop()
    erased["tokens"] = len(await stored.delete_tokens(owner))
    erased["login_sessions"] = await stored.delete_sessions(owner)
    until = loop.time() + (2 * believed if erased["tokens"] or erased["login_sessions"] else 0)
    await _cancel(database, stored, owner)
    await before(owner)
    while True:
        async for step in stored.erase(owner):
            erased[step.table] += step.rows
            erased["recordings"] += sum(map(delete_files, step.turns))
        if loop.time() >= until and await stored.is_erased(owner):
            erased = +erased
            await database.row(END_ERASURE, owner=owner, erased=to_json(erased), any=bool(erased))
            return erased
        await asyncio.sleep(_LOOK)


async def _cancel(database: Database, stored: Owners, owner: str) -> None:
    """Cancels the open turns, and waits briefly until none of them runs. Their rows are deleted even if a turn still
    runs.
    """
    turns, running = await stored.open_turns(owner)
    for turn in turns:
        await database.row(CANCEL_TURN, turn=turn, withdraws=False)
        await database.row(NOTIFY, payload=f"{CANCEL} {turn}")
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while running:
                await asyncio.sleep(_LOOK)
                _, running = await stored.open_turns(owner)

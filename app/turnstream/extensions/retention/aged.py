"""Deletes old chats and uploads."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.retention import NO_ID, aged

# Reads old chats owner by owner, because the index of chats begins with the owner, and another index would slow down
# every message. An owner without old chats has one row with a null. A chat is deleted if its last change is old enough
# and none of its turns is queued or running; a turn that waits for a person does not prevent the deletion. The chat of
# an agent is deleted with the turn that called the agent.
_OF_NO_TURN = "(of_turn IS NULL OR NOT EXISTS (SELECT FROM turns WHERE turns.id = of_turn))"
GET_OLD_CHATS = Statement(
    f"""
    WITH RECURSIVE page (owner, number) AS (
        (SELECT owner, 1 FROM chats WHERE owner >= :begin AND (owner > :begin OR :again) ORDER BY owner LIMIT 1)
        UNION ALL
        SELECT next.owner, number + 1 FROM page CROSS JOIN LATERAL (
            SELECT owner FROM chats WHERE owner > page.owner ORDER BY owner LIMIT 1
        ) AS next
        WHERE number < :owners
    )
    SELECT page.owner, old.id FROM page LEFT JOIN LATERAL (
        SELECT id FROM chats
        WHERE chats.owner = page.owner AND updated_at < now() - CAST(:age AS interval) AND NOT EXISTS (
            SELECT FROM turns WHERE chat_id = chats.id AND status IN ('queued', 'running')
        ) AND {_OF_NO_TURN}
        ORDER BY updated_at LIMIT :most
    ) AS old ON true
    ORDER BY page.owner
    """,
    timeout=LONG,
)
# Checks the conditions again, because a chat may have been used meanwhile. Deletes one chat at a time, because a chat
# may have thousands of turns.
DELETE_OLD_CHAT = Statement(
    f"""
    DELETE FROM chats WHERE id IN (
        SELECT id FROM chats
        WHERE id = :chat AND updated_at < now() - CAST(:age AS interval) AND NOT EXISTS (
            SELECT FROM turns WHERE chat_id = chats.id AND status IN ('queued', 'running')
        ) AND {_OF_NO_TURN}
        FOR UPDATE SKIP LOCKED
    )
    RETURNING id
    """,
    timeout=LONG,
)
AGED_UPLOADS: Final = aged("uploads", {"id": NO_ID}, most=100)  # an upload may have megabytes

_OWNERS = 100  # owners that one statement reads
_CHATS = 10  # chats of an owner that one statement returns


async def old_chats(database: Database, days: float) -> AsyncGenerator[int, None]:
    """Deletes chats whose last change is more than `days` ago."""
    age = timedelta(days=days)
    begin, again = "", True  # the last owner, and whether the next step includes this owner
    while rows := await database.rows(GET_OLD_CHATS, begin=begin, again=again, owners=_OWNERS, age=age, most=_CHATS):
        removed = 0
        for chat in [row["id"] for row in rows if row["id"] is not None]:
            gone = len(await database.rows(DELETE_OLD_CHAT, chat=chat, age=age))
            removed += gone
            yield gone
        yield 0
        # The next step starts after the last owner, or at the first owner who may have more old chats.
        owners = [row["owner"] for row in rows]
        full = [owner for owner in dict.fromkeys(owners) if owners.count(owner) == _CHATS and removed]
        begin, again = (full[0], True) if full else (owners[-1], False)

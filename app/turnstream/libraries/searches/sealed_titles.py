"""Searches encrypted titles. The server decrypts the titles of an owner for each search, so that no row reveals the
words of the titles.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.libraries.searches.places import SEARCH_ANSWER_TIMEOUT
from turnstream.libraries.searches.search import SearchFilter
from turnstream.storage.chats.chats import chat_from
from turnstream.storage.contents import CHATS, is_sealed
from turnstream.storage.database import Statement, Transaction

_BATCH: Final = 500
_MOST: Final = 10_000  # maximum number of chats that one search reads
_WORD: Final = re.compile(r"\w+")
# A character of a script that has no blanks between words, as in the SQL function `search_plain`.
UNSPACED: Final = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_UNSPACED: Final = re.compile(UNSPACED)

LIST_SEALED_TITLES = Statement(
    f"""
    SELECT id, title, updated_at FROM chats
    WHERE owner = :owner AND {is_sealed("title")} AND (CAST(:only AS uuid) IS NULL OR id = :only)
        AND (CAST(:since AS timestamptz) IS NULL OR created_at >= :since)
        AND (CAST(:until AS timestamptz) IS NULL OR created_at < :until)
        AND (CAST(:before AS timestamptz) IS NULL OR (updated_at, id) < (:before, CAST(:before_id AS uuid)))
    ORDER BY updated_at DESC, id DESC LIMIT :most
    """,
    opens=[CHATS],
    timeout=SEARCH_ANSWER_TIMEOUT,
)
GET_FOUND_CHATS = Statement(
    """
    SELECT * FROM chats WHERE owner = :owner AND id = ANY(CAST(:ids AS uuid[])) ORDER BY updated_at DESC, id DESC
    """,
    opens=[CHATS],
    timeout=SEARCH_ANSWER_TIMEOUT,
)


async def chats_by_sealed_title(
    connection: Transaction,
    owner: str,
    words: Sequence[str],
    limit: int,
    only: SearchFilter,
    behind: tuple[datetime, UUID] | None = None,
) -> Sequence[Chat]:
    """Returns the most recently changed chats before `behind` whose titles contain all words. Returns no chats if the
    server does not encrypt titles.
    """
    if connection.codec is None or not connection.codec.seals:
        return ()
    found, read = list[UUID](), 0
    before, before_id = behind or (None, None)
    while len(found) < limit and read < _MOST:
        rows = await connection.rows(
            LIST_SEALED_TITLES,
            owner=owner,
            only=only.chat,
            since=only.since,
            until=only.until,
            before=before,
            before_id=before_id,
            most=_BATCH,
        )
        found += [row["id"] for row in rows if has_words(row["title"], words)]
        if len(rows) < _BATCH:
            break
        read += len(rows)
        before, before_id = rows[-1]["updated_at"], rows[-1]["id"]
    if not found:
        return ()
    return [chat_from(row) for row in await connection.rows(GET_FOUND_CHATS, owner=owner, ids=found[:limit])]


def has_words(title: str, words: Sequence[str]) -> bool:
    """Returns whether each word is a prefix of a word of the title. In a script without blanks, a word may be any part
    of the title.
    """
    tokens = _WORD.findall(title.casefold())
    parts = [part for word in words for part in _WORD.findall(word.casefold())]
    return bool(parts) and all(
        any(part in token if _UNSPACED.search(part) else token.startswith(part) for token in tokens) for part in parts
    )

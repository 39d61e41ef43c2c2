"""Chats: storing, listing and searching them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg import QueryCanceledError

from app.domain.chats import Chat
from app.domain.errors import NotFound, RequestRefused
from app.kit.excerpt import AFTER, BEFORE, Excerpt, line_of, pieces_of, without_markdown
from app.kit.ids import new_id
from app.storage.database import LONG, Database, Row, Statement
from app.storage.rows import from_json, to_json

CREATE_CHAT = Statement(
    """
    INSERT INTO chats (id, owner, title, system_prompt, settings)
    VALUES (:chat, :owner, :title, :system_prompt, CAST(:settings AS json))
    ON CONFLICT (id) DO NOTHING RETURNING *
    """
)
GET_CHAT = Statement("SELECT * FROM chats WHERE id = :chat AND owner = :owner")
LIST_CHATS = Statement(
    """
    SELECT * FROM chats
    WHERE owner = :owner
      AND (CAST(:before AS timestamptz) IS NULL OR (updated_at, id) < (:before, CAST(:before_id AS uuid)))
    ORDER BY updated_at DESC, id DESC LIMIT :limit
    """
)
# In seconds, twice: to wait for one of the searches that a replica runs at once, and to run the search.
SEARCH_TIMEOUT = 2.0
_CONCURRENT_SEARCHES = 2

LIMIT_TIME = Statement("SELECT set_config('statement_timeout', :most, true)")
# No index: the texts of one owner are few, a page is soon full from the newest chat on, and parts of words in any
# language are found. 40,000 turns without a match take 0.4 s. The excerpt shows the first place of the longest word
# that is not in the title; turns are read one by one, so that those behind it are not read again.
SEARCH_CHATS = Statement(
    """
    WITH hits AS (
        SELECT *, (
            SELECT word FROM unnest(CAST(:words AS text[])) AS word
            WHERE strpos(lower(coalesce(title, '')), lower(word)) = 0
            ORDER BY length(word) DESC LIMIT 1
        ) AS shown
        FROM chats
        WHERE owner = :owner
          AND (CAST(:before AS timestamptz) IS NULL OR (updated_at, id) < (:before, CAST(:before_id AS uuid)))
          AND NOT EXISTS (
            SELECT FROM unnest(CAST(:words AS text[])) AS word
            WHERE strpos(lower(coalesce(title, '')), lower(word)) = 0 AND NOT EXISTS (
                SELECT FROM turns JOIN blocks ON turn_id = turns.id
                WHERE chat_id = chats.id AND type IN ('text', 'user_text') AND strpos(lower(text), lower(word)) > 0
            )
          )
        ORDER BY updated_at DESC, id DESC LIMIT :limit
    )
    SELECT hits.*, found.turn_id AS found_in, place > CAST(:margin_before AS integer) + 1 AS cut_before,
        place + length(shown) + :margin_after <= length(found.text) AS cut_after,
        substr(found.text, greatest(place - :margin_before, 1),
            least(place - 1, :margin_before) + length(shown) + CAST(:margin_after AS integer)) AS around
    FROM hits LEFT JOIN LATERAL (
        SELECT block.* FROM turns CROSS JOIN LATERAL (
            SELECT turn_id, text, strpos(lower(text), lower(shown)) AS place FROM blocks
            WHERE turn_id = turns.id AND type IN ('text', 'user_text') AND strpos(lower(text), lower(shown)) > 0
            ORDER BY index LIMIT 1
        ) AS block
        WHERE shown IS NOT NULL AND chat_id = hits.id ORDER BY turns.id LIMIT 1
    ) AS found ON true
    ORDER BY updated_at DESC, hits.id DESC
    """
)
LOCK_CHAT = Statement("SELECT * FROM chats WHERE id = :chat AND owner = :owner FOR NO KEY UPDATE")
CHANGE_CHAT = Statement(
    """
    UPDATE chats
    SET title = CASE WHEN 'title' = ANY(CAST(:changed AS text[])) THEN :title ELSE title END,
        system_prompt = CASE WHEN 'system_prompt' = ANY(:changed) THEN :system_prompt ELSE system_prompt END,
        settings = CASE WHEN 'settings' = ANY(:changed) THEN CAST(:settings AS json) ELSE settings END,
        updated_at = greatest(clock_timestamp(), updated_at + interval '1 microsecond')
    WHERE id = :chat
    RETURNING *
    """
)
DELETE_CHAT = Statement(
    """
    WITH gone AS (DELETE FROM chats WHERE id = :chat AND owner = :owner RETURNING id)
    SELECT turns.id AS running FROM gone LEFT JOIN turns ON chat_id = gone.id AND status = 'running'
    """,
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A chat that was found, with an excerpt."""

    chat: Chat
    excerpt: Excerpt


def chat_from(row: Row) -> Chat:
    return Chat(
        id=row["id"],
        owner=row["owner"],
        title=row["title"],
        system_prompt=row["system_prompt"],
        settings=from_json(row["settings"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


class Chats:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._searches = asyncio.Semaphore(_CONCURRENT_SEARCHES)

    async def create(
        self, owner: str, title: str | None, system_prompt: str | None, settings: Mapping[str, Any]
    ) -> Chat:
        row = await self._database.row(
            CREATE_CHAT,
            chat=new_id(),
            owner=owner,
            title=title,
            system_prompt=system_prompt,
            settings=to_json(settings),
        )
        assert row is not None
        return chat_from(row)

    async def get(self, owner: str, chat: UUID) -> Chat:
        """Raises NotFound."""
        return chat_from(_row(await self._database.row(GET_CHAT, owner=owner, chat=chat), chat))

    async def page(self, owner: str, limit: int, before: tuple[datetime, UUID] | None) -> Sequence[Chat]:
        """Up to `limit` chats, last changed first, those older than `before`."""
        when, identity = before or (None, None)
        rows = await self._database.rows(LIST_CHATS, owner=owner, limit=limit, before=when, before_id=identity)
        return [chat_from(row) for row in rows]

    async def search(
        self, owner: str, words: Sequence[str], limit: int, before: tuple[datetime, UUID] | None
    ) -> Sequence[Hit]:
        """A page of the chats in whose title or texts each of `words` is found. Raises RequestRefused when the search
        takes too long.
        """
        when, identity = before or (None, None)
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT):
                await self._searches.acquire()
        except TimeoutError:
            raise _too_slow() from None
        try:
            rows = await self._search(owner=owner, words=words, limit=limit, before=when, before_id=identity)
        finally:
            self._searches.release()
        hits = []
        for row in rows:
            line = row["title"]
            if row["found_in"] is not None:
                window = without_markdown(row["around"], words)
                line = line_of(window, cut_before=row["cut_before"], cut_after=row["cut_after"])
            hits.append(Hit(chat_from(row), Excerpt(row["found_in"], pieces_of(line, words))))
        return hits

    async def _search(self, **values: Any) -> Sequence[Row]:
        async with self._database.transaction() as connection:
            await connection.rows(LIMIT_TIME, most=f"{SEARCH_TIMEOUT * 1000:.0f}")
            try:
                return await connection.rows(SEARCH_CHATS, margin_before=BEFORE, margin_after=AFTER, **values)
            except QueryCanceledError:
                raise _too_slow() from None

    async def change(self, owner: str, chat: UUID, changed: Callable[[Chat], Mapping[str, Any]]) -> Chat:
        """Sets those of title, system_prompt and settings that `changed` returns for the chat as it is, which nothing
        else changes meanwhile. Raises NotFound.
        """
        async with self._database.transaction() as connection:
            before = _row(await connection.row(LOCK_CHAT, owner=owner, chat=chat), chat)
            changes = changed(chat_from(before))
            (row,) = await connection.rows(
                CHANGE_CHAT,
                chat=chat,
                changed=list(changes),
                title=changes.get("title"),
                system_prompt=changes.get("system_prompt"),
                settings=to_json(changes.get("settings")),
            )
        return chat_from(row)

    async def delete(self, owner: str, chat: UUID) -> Sequence[UUID]:
        """Deletes a chat, and returns its running turns. Raises NotFound."""
        rows = await self._database.rows(DELETE_CHAT, owner=owner, chat=chat)
        _row(rows[0] if rows else None, chat)
        return [row["running"] for row in rows if row["running"] is not None]


def _too_slow() -> RequestRefused:
    return RequestRefused("`q` takes too long to be searched for; send other words, or try again later.", field="q")


def _row(row: Row | None, chat: UUID) -> Row:
    if row is None:
        raise NotFound(f"There is no chat {chat}.")
    return row

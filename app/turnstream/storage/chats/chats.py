"""Stores, lists and deletes chats."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.errors import NoSuchPage, NotFound
from turnstream.kit.ids import new_id
from turnstream.kit.moments import from_microseconds, microseconds_of
from turnstream.storage.contents import CHATS
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.rows import IS_OPEN_JOB, from_json, to_json

_TOKEN = re.compile("([0-9]{1,16})_([0-9a-f]{32})")

_writes = partial(Statement, seals=[CHATS.named(id="chat")], opens=[CHATS])
CREATE_CHAT = _writes(
    """
    INSERT INTO chats (id, owner, title, system_prompt, settings)
    VALUES (:chat, :owner, :title, :system_prompt, CAST(:settings AS json))
    ON CONFLICT (id) DO NOTHING RETURNING *
    """
)
GET_CHAT = Statement("SELECT * FROM chats WHERE id = :chat AND owner = :owner", opens=[CHATS])
# The owner's open jobs are found by an index.
LIST_CHATS = Statement(
    f"""
    WITH calls AS MATERIALIZED (
        SELECT chat_id, count(*) AS jobs FROM jobs JOIN turns ON turns.id = turn_id
        WHERE jobs.queue_owner = :owner AND {IS_OPEN_JOB} GROUP BY chat_id
    )
    SELECT chats.*, coalesce(calls.jobs, 0) AS jobs FROM chats LEFT JOIN calls ON chat_id = chats.id
    WHERE owner = :owner AND of_turn IS NULL
      AND (CAST(:before AS timestamptz) IS NULL OR (updated_at, id) < (:before, CAST(:before_id AS uuid)))
    ORDER BY updated_at DESC, id DESC LIMIT :limit
    """,
    opens=[CHATS],
)
LOCK_CHAT = Statement("SELECT * FROM chats WHERE id = :chat AND owner = :owner FOR NO KEY UPDATE", opens=[CHATS])
CHANGE_CHAT = _writes(
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


def page_behind(chat: Chat) -> str:
    """Returns the name of the page after this chat, in a list that begins with the chat that changed last."""
    return f"{microseconds_of(chat.updated_at)}_{chat.id.hex}"


def place_of_page(name: str | None) -> tuple[datetime, UUID] | None:
    """Returns the position after which the page begins; None for the first page. Raises NoSuchPage."""
    if not name:
        return None
    found = _TOKEN.fullmatch(name)
    if found is None:
        raise NoSuchPage
    return from_microseconds(int(found[1])), UUID(found[2])


class ChatInList(NamedTuple):
    """A chat, and the number of its open jobs."""

    chat: Chat
    jobs: int


class ChatReads:
    """Reads chats. A standby can execute these reads too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, owner: str, chat: UUID) -> Chat:
        """Returns the chat. Raises NotFound."""
        return chat_from(_row(await self._database.row(GET_CHAT, owner=owner, chat=chat), chat))

    async def page(self, owner: str, limit: int, before: tuple[datetime, UUID] | None) -> Sequence[ChatInList]:
        """Returns up to `limit` chats that changed before the position `before`, the last changed chat first."""
        when, identity = before or (None, None)
        rows = await self._database.rows(LIST_CHATS, owner=owner, limit=limit, before=when, before_id=identity)
        return [ChatInList(chat_from(row), row["jobs"]) for row in rows]


class Chats(ChatReads):
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

    async def change(self, owner: str, chat: UUID, changed: Callable[[Chat], Mapping[str, Any]]) -> Chat:
        """Locks the chat, and sets the title, system_prompt and settings that `changed` returns. Raises NotFound."""
        async with self._database.transaction() as connection:
            before = _row(await connection.row(LOCK_CHAT, owner=owner, chat=chat), chat)
            changes = changed(chat_from(before))
            (row,) = await connection.rows(
                CHANGE_CHAT,
                owner=owner,
                chat=chat,
                changed=list(changes),
                title=changes.get("title"),
                system_prompt=changes.get("system_prompt"),
                settings=to_json(changes.get("settings")),
            )
        return chat_from(row)

    async def delete(self, owner: str, chat: UUID) -> Sequence[UUID]:
        """Deletes a chat, and returns the turns that were running in it. Raises NotFound."""
        rows = await self._database.rows(DELETE_CHAT, owner=owner, chat=chat)
        _row(rows[0] if rows else None, chat)
        return [row["running"] for row in rows if row["running"] is not None]


def _row(row: Row | None, chat: UUID) -> Row:
    if row is None:
        raise NotFound(f"There is no chat {chat}.")
    return row

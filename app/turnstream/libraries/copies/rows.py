"""Copies the rows of the path to a turn."""

import asyncio
from dataclasses import dataclass
from importlib import import_module
from uuid import UUID

from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.turns import TurnRequest
from turnstream.kit.ids import new_id
from turnstream.libraries.copies.cutting import CutTurn
from turnstream.storage.chats.exchanges import (
    CREATE_SIBLING,
    KEEP_KEY,
    MARK_FOLLOWED,
    Exchanges,
    IdempotencyKey,
    KeyTaken,
    take_queued_place,
)
from turnstream.storage.contents import CHATS
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import to_json

# Most turns that a fork copies.
_MOST_COPIED = 10_000

GET_PATH_IDS = Statement(
    """
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.parent_id, depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
        WHERE depth < :most
    )
    SELECT id FROM path ORDER BY depth DESC
    """
)
# The copied turns keep their times; the chat's `updated_at` is later than all these times.
COPY_CHAT = Statement(
    """
    INSERT INTO chats (id, owner, title, system_prompt, settings, updated_at)
    SELECT :copy, owner, :title, :system_prompt, settings, greatest(clock_timestamp(), updated_at)
    FROM chats WHERE id = :chat
    RETURNING id
    """,
    seals=[CHATS.named(id="copy")],
)


@dataclass(frozen=True, slots=True)
class Fork:
    """Copies the path to a turn into a new chat with this title, or copies the turn alone, as its own sibling. If the
    turn is a user turn, `request` is the request of a new answer to the copy.
    """

    cut: CutTurn
    new_chat: bool
    title: str | None = None
    request: TurnRequest | None = None


class Forks:
    def __init__(self, database: Database) -> None:
        self._exchanges = Exchanges(database)

    async def make(
        self, owner: str, fork: Fork, key: IdempotencyKey | None, most_queued: int | None = None
    ) -> tuple[UUID, UUID]:
        """Makes the fork. Returns the chat of the copy, and the last assistant turn of the copy. The owner may have at
        most `most_queued` turns in the queue. Raises NotFound, RequestRefused, KeyTaken, TooMany.
        """
        # The first import takes a fifth of a second, because it reads the columns of all tables.
        await asyncio.to_thread(import_module, "turnstream.libraries.copies.turn_copies")
        from turnstream.libraries.copies.turn_copies import copy_turns  # noqa: PLC0415

        original = fork.cut.turn
        source, before = original.chat_id, original.parent_id
        async with self._exchanges.locked(owner, source, key) as (connection, copied):
            rows = await connection.rows(GET_PATH_IDS, chat=source, turn=original.id, most=_MOST_COPIED)
            if not rows:
                raise NotFound(f"There is no turn {original.id} in chat {source}.")
            path, chat = [row["id"] for row in rows], source
            if not fork.new_chat:
                path = path[-1:]
            elif len(path) > _MOST_COPIED:
                longest = f"at most {_MOST_COPIED:,} turns, and the path to this turn is longer"
                raise RequestRefused(f"`into` must be `branch` here: a new chat gets {longest}.", field="into")
            else:
                chat, before = new_id(), None
                texts = {"title": fork.title, "system_prompt": copied.system_prompt}
                await connection.row(COPY_CHAT, owner=owner, copy=chat, chat=source, **texts)
            leaf = await copy_turns(connection, owner, fork.cut, chat, path, before)
            if fork.request is not None:
                if before is not None:
                    await connection.row(MARK_FOLLOWED, turn=before)
                await take_queued_place(connection, owner, most_queued)
                values = {"owner": owner, "chat": chat, "parent": leaf, "request": to_json(fork.request)}
                row = await connection.row(CREATE_SIBLING, id=new_id(), **values)
                assert row is not None
                leaf = row["id"]
            if key and not await connection.row(
                KEEP_KEY, owner=owner, key=key.key, digest=key.digest, turn=leaf, steer=None
            ):
                raise KeyTaken
        return chat, leaf

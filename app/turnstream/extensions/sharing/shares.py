"""Links to chats: their rows, and the content that they show.

A link is found by its secret, before its owner is known. So these statements have access to the rows of all owners, and
each statement for a credential names its owner.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from turnstream.domain.errors import Conflict, NotFound
from turnstream.domain.identity import Identity
from turnstream.extensions.sharing.members import Members
from turnstream.extensions.sharing.schemas import ShareIn
from turnstream.kit.ids import new_id
from turnstream.storage.contents import CHATS
from turnstream.storage.database import Database, Row, Statement

MOST_SHARES: Final = 1000  # of an owner
_FRESH: Final = 1.0  # seconds for which all readers of a link get the same content
_MOST_KEPT: Final = 1000

_OPENS = (CHATS.named(id="chat"),)
_COLUMNS = "shares.id, chat_id AS chat, title, live, turn_id AS turn, results, files, shares.created_at, expires_at"
CREATE_SHARE = Statement(
    f"""
    WITH made AS (
        INSERT INTO shares (id, chat_id, turn_id, live, results, files, digest, expires_at)
        SELECT :id, id, :turn, :live, :results, :files, :digest, now() + CAST(:life AS interval)
        FROM chats WHERE id = :chat AND owner = :owner AND (
            SELECT count(*) FROM shares JOIN chats ON chats.id = chat_id WHERE owner = :owner
        ) < {MOST_SHARES}
        RETURNING *
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'share.created', :owner, CAST(:actor AS text), json_build_object('share', id, 'chat', chat_id) FROM made
    )
    SELECT made.id, chat_id AS chat, title, live, turn_id AS turn, results, files, made.created_at, expires_at
    FROM made JOIN chats ON chats.id = chat_id
    """,
    opens=_OPENS,
)
LIST_SHARES = Statement(
    f"SELECT {_COLUMNS} FROM shares JOIN chats ON chats.id = chat_id"
    " WHERE owner = :owner AND coalesce(chat_id = :chat, true) ORDER BY shares.created_at DESC, shares.id LIMIT :limit",
    opens=_OPENS,
)
GET_SHARE = Statement(
    f"SELECT {_COLUMNS} FROM shares JOIN chats ON chats.id = chat_id WHERE shares.id = :id AND owner = :owner",
    opens=_OPENS,
)
REVOKE_SHARE = Statement(
    """
    WITH revoked AS (
        DELETE FROM shares USING chats WHERE chats.id = chat_id AND shares.id = :id AND owner = :owner
        RETURNING shares.id, chat_id
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'share.revoked', :owner, CAST(:actor AS text), json_build_object('share', id, 'chat', chat_id)
        FROM revoked
    )
    SELECT id FROM revoked
    """
)
FIND_SHARE = Statement(
    f"SELECT {_COLUMNS}, owner FROM shares JOIN chats ON chats.id = chat_id"
    " WHERE digest = :digest AND coalesce(expires_at > now(), true)",
    opens=_OPENS,
)


@dataclass(frozen=True, slots=True)
class SharedContent:
    """The JSON of a shared chat, its ETag, and the uploads that it shows."""

    owner: str
    body: bytes
    tag: str
    uploads: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The state of the extension."""

    shares: "Shares"
    members: Members


class Shares:
    """Creates, lists, revokes and reads links. `life` is the longest life of a link, in seconds."""

    def __init__(self, database: Database, life: float | None) -> None:
        self._database = database
        self._life = life
        self._recent: dict[bytes, tuple[float, asyncio.Task[SharedContent]]] = {}

    async def create(self, identity: Identity, chat: UUID, turn: UUID | None, asked: ShareIn) -> tuple[Row, str]:
        """Returns the row, and the secret of the link. Raises Conflict. The caller checks that the chat exists."""
        secret = secrets.token_urlsafe(32)
        lives = [seconds for seconds in (asked.seconds, self._life) if seconds is not None]
        row = await self._database.row(
            CREATE_SHARE,
            id=new_id(),
            chat=chat,
            turn=turn,
            live=asked.live,
            results=asked.results,
            files=asked.files,
            digest=_digest(secret),
            life=timedelta(seconds=min(lives)) if lives else None,
            owner=identity.owner,
            actor=identity.actor,
        )
        if row is None:
            raise Conflict(f"An owner may have {MOST_SHARES:,} links: revoke one.")
        return row, secret

    async def list(self, owner: str, chat: UUID | None, limit: int) -> Sequence[Row]:
        return await self._database.rows(LIST_SHARES, owner=owner, chat=chat, limit=limit)

    async def get(self, owner: str, id: UUID) -> Row:
        """Returns the row of a link. Raises NotFound."""
        row = await self._database.row(GET_SHARE, owner=owner, id=id)
        if row is None:
            raise NotFound(f"The owner has no link {id}.")
        return row

    async def revoke(self, identity: Identity, id: UUID) -> None:
        """Revokes a link. Other replicas may show its content for another second. Raises NotFound."""
        if await self._database.row(REVOKE_SHARE, owner=identity.owner, id=id, actor=identity.actor) is None:
            raise NotFound(f"The owner has no link {id}.")
        self._recent.clear()

    async def content(self, secret: str, read: Callable[[Row], Awaitable[SharedContent]]) -> SharedContent:
        """Returns the content of a link. `read` creates the content from the row of the link. Requests within a second
        share one read, so that many readers of a link cause no more queries than one reader. Raises NotFound.
        """
        digest, now = _digest(secret), monotonic()
        until, task = self._recent.get(digest, (0.0, None))
        if task is None or until <= now:
            if len(self._recent) >= _MOST_KEPT:
                self._recent = {key: kept for key, kept in self._recent.items() if kept[0] > now}
            task = asyncio.create_task(self._read(digest, read))
            # All readers may have disconnected.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if len(self._recent) < _MOST_KEPT:
                self._recent[digest] = (now + _FRESH, task)
        return await asyncio.shield(task)

    async def _read(self, digest: bytes, read: Callable[[Row], Awaitable[SharedContent]]) -> SharedContent:
        row = await self._database.row(FIND_SHARE, digest=digest)
        if row is None:
            raise NotFound("This link does not exist, has expired, or was revoked.")
        return await read(row)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()

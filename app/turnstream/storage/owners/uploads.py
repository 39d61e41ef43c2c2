"""Uploads: files that turns refer to. Uploads never change; equal bytes of one owner are one upload."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import UUID

from turnstream.domain.limits import ReachedLimit
from turnstream.domain.plans import Plan
from turnstream.kit.ids import new_id
from turnstream.kit.offload import offload
from turnstream.storage.contents import BYTES_SIZE, UPLOADS
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.rows import MAY_NAME_UPLOADS

UPLOAD_COLUMNS: Final = f"id, digest, media_type, {BYTES_SIZE} AS size, file_name, purpose"
PUT_UPLOAD = Statement(
    f"""
    INSERT INTO uploads (id, owner, digest, media_type, content, file_name, purpose)
    VALUES (:id, :owner, :digest, :media_type, :content, CAST(:file_name AS text), CAST(:purpose AS text))
    ON CONFLICT (owner, digest) DO UPDATE SET media_type = EXCLUDED.media_type, created_at = now(),
        file_name = coalesce(EXCLUDED.file_name, uploads.file_name),
        purpose = coalesce(EXCLUDED.purpose, uploads.purpose)
    RETURNING {UPLOAD_COLUMNS}, id = :id AS created
    """,
    seals=[UPLOADS],
    opens=[UPLOADS],
)
# The files of an owner are stored one after another, so that two files cannot both use the last room of the plan.
LOCK_FILES = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:owner, 0))")
COUNT_OTHERS = Statement(
    f"""
    SELECT count(*) AS uploads, coalesce(sum({BYTES_SIZE}), 0) AS upload_bytes
    FROM uploads WHERE owner = :owner AND digest <> :digest
    """,
    seals=[UPLOADS],
)
DESCRIBE_UPLOADS = Statement(
    f"""
    SELECT {UPLOAD_COLUMNS}, false AS created FROM uploads
    WHERE owner = :owner AND id = ANY(CAST(:ids AS uuid[]))
    """,
    opens=[UPLOADS],
)
GET_UPLOAD = Statement(
    "SELECT media_type, digest, content FROM uploads WHERE owner = :owner AND id = :id", opens=[UPLOADS]
)
GET_CONTENTS = Statement(
    "SELECT id, owner, digest, content FROM uploads WHERE id = ANY(CAST(:ids AS uuid[]))", opens=[UPLOADS]
)
# Only a source counts as a reference. A title is written by the client, and may contain any id.
_REFERENCES = f"""
    SELECT FROM turns JOIN blocks ON turn_id = turns.id
    WHERE chat_id = :chat AND coalesce(turns.id = CAST(:turn AS uuid), true)
      AND {MAY_NAME_UPLOADS} AND position(CAST(:id AS text) IN data::text) > 0
      AND jsonb_path_exists(
        data::jsonb, '$.**.source ? (@.type == "upload" && @.id == $id)', jsonb_build_object('id', CAST(:id AS text))
      )
"""
SHOWS_UPLOAD = Statement(f"{_REFERENCES} LIMIT 1")
IS_OF_CHAT = Statement(
    f"""
    SELECT WHERE EXISTS ({_REFERENCES})
      OR (CAST(:turn AS uuid) IS NULL AND EXISTS (
        SELECT FROM chat_uploads WHERE chat_id = :chat AND upload_id = CAST(:id AS text)::uuid
      ))
    """
)
KEEP_FOR_CHAT = Statement(
    """
    INSERT INTO chat_uploads (chat_id, upload_id) VALUES (:chat, :upload) ON CONFLICT DO NOTHING RETURNING upload_id
    """
)
DELETE_UPLOAD = Statement(
    f"""
    DELETE FROM uploads
    WHERE owner = :owner AND id = :id AND NOT (CAST(:only_unused AS boolean) AND (EXISTS (
        SELECT FROM chats JOIN turns ON chat_id = chats.id JOIN blocks ON turn_id = turns.id
        WHERE chats.owner = :owner AND {MAY_NAME_UPLOADS}
          AND position(uploads.id::text IN data::text) > 0
    ) OR EXISTS (
        SELECT FROM chats JOIN turns ON chat_id = chats.id JOIN asks ON turn_id = turns.id
        WHERE chats.owner = :owner AND position(uploads.id::text IN answer::text) > 0
    )))
    RETURNING id
    """
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file without its bytes. `size` is in bytes; `created` is false if the file existed before. `name` and `purpose`
    come from the last upload that had them.
    """

    id: UUID
    media_type: str
    size: int
    created: bool = False
    name: str | None = None
    purpose: str | None = None

    @property
    def source(self) -> dict[str, str]:
        """The object `source` with which blocks refer to the upload."""
        return {"type": "upload", "id": str(self.id), "media_type": self.media_type}


async def _digest(content: bytes) -> bytes:
    return await offload(len(content), lambda: sha256(content).digest())


class Uploads:
    def __init__(self, database: Database | Transaction) -> None:
        self._database = database

    async def put(
        self, owner: str, media_type: str, content: bytes, name: str | None = None, purpose: str | None = None
    ) -> Upload:
        row = await self._database.row(
            PUT_UPLOAD,
            id=new_id(),
            owner=owner,
            digest=await _digest(content),
            media_type=media_type,
            content=content,
            file_name=name,
            purpose=purpose,
        )
        assert row is not None
        return upload_from(row)

    async def put_within(
        self,
        owner: str,
        media_type: str,
        content: bytes,
        plan: Plan,
        name: str | None = None,
        purpose: str | None = None,
    ) -> Upload | ReachedLimit:
        """Stores the file. If the owner's files would exceed the plan, returns the limit instead."""
        if plan.uploads is None and plan.upload_bytes is None:
            return await self.put(owner, media_type, content, name, purpose)
        assert isinstance(self._database, Database)
        async with self._database.transaction() as connection:
            await connection.row(LOCK_FILES, owner=owner)
            others = await connection.row(COUNT_OTHERS, owner=owner, digest=await _digest(content))
            assert others is not None
            for of, limit, size in (("uploads", plan.uploads, 1), ("upload_bytes", plan.upload_bytes, len(content))):
                if limit is not None and others[of] + size > limit:
                    return ReachedLimit(of, limit, int(others[of]))
            return await Uploads(connection).put(owner, media_type, content, name, purpose)

    async def describe(self, owner: str, ids: Collection[UUID]) -> Mapping[UUID, Upload]:
        """Returns the owner's uploads among `ids`."""
        rows = await self._database.rows(DESCRIBE_UPLOADS, owner=owner, ids=list(ids))
        return {row["id"]: upload_from(row) for row in rows}

    async def read(self, owner: str, id: UUID) -> tuple[str, bytes] | None:
        """Returns the media type and the bytes; None if the owner has no such upload."""
        row = await self._database.row(GET_UPLOAD, owner=owner, id=id)
        return (row["media_type"], row["content"]) if row else None

    async def is_shown(self, chat: UUID, turn: UUID | None, id: UUID) -> bool:
        """Whether a turn of the chat refers to the upload. With `turn`, only this turn counts."""
        return await self._database.row(SHOWS_UPLOAD, chat=chat, turn=turn, id=str(id)) is not None

    async def is_of_chat(self, chat: UUID | None, turn: UUID | None, id: UUID) -> bool:
        """Whether a turn of the chat refers to the upload, or the upload was stored for the chat. With `turn`, only
        this turn counts.
        """
        return await self._database.row(IS_OF_CHAT, chat=chat, turn=turn, id=str(id)) is not None

    async def keep_for_chat(self, chat: UUID, id: UUID) -> None:
        """Stores that the upload belongs to the chat."""
        await self._database.row(KEEP_FOR_CHAT, chat=chat, upload=id)

    async def contents(self, ids: Collection[UUID]) -> Mapping[UUID, bytes]:
        """Returns the bytes of existing uploads of any owner. Pass only the ids of uploads that the turn refers to."""
        rows = await self._database.rows(GET_CONTENTS, ids=list(ids))
        return {row["id"]: row["content"] for row in rows}

    async def delete(self, owner: str, id: UUID, *, only_unused: bool = False) -> bool:
        """Deletes an upload. Returns False if it does not exist, or if a turn refers to it and `only_unused` is set."""
        return await self._database.row(DELETE_UPLOAD, owner=owner, id=id, only_unused=only_unused) is not None


def upload_from(row: Row) -> Upload:
    return Upload(row["id"], row["media_type"], row["size"], row["created"], row["file_name"], row["purpose"])

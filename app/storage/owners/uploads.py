"""Uploads: files that turns refer to. They never change; equal bytes of one owner are one upload."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from app.domain.limits import ReachedLimit
from app.domain.plans import Plan
from app.kit.ids import new_id
from app.kit.offload import offload
from app.storage.database import LONG, Database, Row, Statement, Transaction

PUT_UPLOAD = Statement(
    """
    INSERT INTO uploads (id, owner, digest, media_type, content) VALUES (:id, :owner, :digest, :media_type, :content)
    ON CONFLICT (owner, digest) DO UPDATE SET media_type = EXCLUDED.media_type, created_at = now()
    RETURNING id, media_type, length(content) AS size, id = :id AS created
    """
)
# One file of an owner is put after the other, so that two do not take the same room.
LOCK_FILES = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:owner, 0))")
COUNT_OTHERS = Statement(
    """
    SELECT count(*) AS uploads, coalesce(sum(length(content)), 0) AS upload_bytes
    FROM uploads WHERE owner = :owner AND digest <> :digest
    """
)
DESCRIBE_UPLOADS = Statement(
    """
    SELECT id, media_type, length(content) AS size, false AS created FROM uploads
    WHERE owner = :owner AND id = ANY(CAST(:ids AS uuid[]))
    """
)
GET_UPLOAD = Statement("SELECT media_type, content FROM uploads WHERE owner = :owner AND id = :id")
GET_CONTENTS = Statement("SELECT id, content FROM uploads WHERE id = ANY(CAST(:ids AS uuid[]))")
# Only a source counts as a reference here: a title, which the client writes, may have any id in it.
_REFERENCES = """
    SELECT FROM turns JOIN blocks ON turn_id = turns.id
    WHERE chat_id = :chat AND coalesce(turns.id = CAST(:turn AS uuid), true)
      AND type IN ('image', 'document', 'tool_result') AND position(CAST(:id AS text) IN data::text) > 0
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
    """
    DELETE FROM uploads
    WHERE owner = :owner AND id = :id AND NOT (CAST(:only_unused AS boolean) AND (EXISTS (
        SELECT FROM chats JOIN turns ON chat_id = chats.id JOIN blocks ON turn_id = turns.id
        WHERE chats.owner = :owner AND type IN ('image', 'document', 'tool_result')
          AND position(uploads.id::text IN data::text) > 0
    ) OR EXISTS (
        SELECT FROM chats JOIN turns ON chat_id = chats.id JOIN asks ON turn_id = turns.id
        WHERE chats.owner = :owner AND position(uploads.id::text IN answer::text) > 0
    )))
    RETURNING id
    """
)
# Any text that looks like an id counts as a reference, in blocks with files and in the layouts of answers: better to
# keep an upload too many.
SWEEP = Statement(
    """
    WITH texts AS (
        SELECT data::text AS content FROM blocks
        WHERE type IN ('image', 'document', 'tool_result') AND data IS NOT NULL
        UNION ALL
        SELECT answer->>'layout' FROM asks WHERE answer->>'layout' IS NOT NULL
    ), used AS MATERIALIZED (
        SELECT found[1] AS id FROM texts, LATERAL regexp_matches(content, '[0-9a-f]{8}-[0-9a-f-]{27}', 'g') AS found
    )
    DELETE FROM uploads
    WHERE created_at < now() - make_interval(secs => :kept) AND id::text NOT IN (SELECT id FROM used)
    RETURNING id
    """,
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file without its bytes. `size` is in bytes; `created` is false where the file was there already."""

    id: UUID
    media_type: str
    size: int
    created: bool = False

    @property
    def source(self) -> dict[str, str]:
        """The source object by which blocks refer to it."""
        return {"type": "upload", "id": str(self.id), "media_type": self.media_type}


async def _digest(content: bytes) -> bytes:
    return await offload(len(content), lambda: sha256(content).digest())


class Uploads:
    def __init__(self, database: Database | Transaction) -> None:
        self._database = database

    async def put(self, owner: str, media_type: str, content: bytes) -> Upload:
        row = await self._database.row(
            PUT_UPLOAD,
            id=new_id(),
            owner=owner,
            digest=await _digest(content),
            media_type=media_type,
            content=content,
        )
        assert row is not None
        return _upload(row)

    async def put_within(self, owner: str, media_type: str, content: bytes, plan: Plan) -> Upload | ReachedLimit:
        """The same, unless the files of the owner are then more than the plan allows."""
        if plan.uploads is None and plan.upload_bytes is None:
            return await self.put(owner, media_type, content)
        assert isinstance(self._database, Database)
        async with self._database.transaction() as connection:
            await connection.row(LOCK_FILES, owner=owner)
            others = await connection.row(COUNT_OTHERS, owner=owner, digest=await _digest(content))
            assert others is not None
            for name, limit, size in (("uploads", plan.uploads, 1), ("upload_bytes", plan.upload_bytes, len(content))):
                if limit is not None and others[name] + size > limit:
                    return ReachedLimit(name, limit, int(others[name]))
            return await Uploads(connection).put(owner, media_type, content)

    async def describe(self, owner: str, ids: Collection[UUID]) -> Mapping[UUID, Upload]:
        """Those of `ids` that belong to the owner."""
        rows = await self._database.rows(DESCRIBE_UPLOADS, owner=owner, ids=list(ids))
        return {row["id"]: _upload(row) for row in rows}

    async def read(self, owner: str, id: UUID) -> tuple[str, bytes] | None:
        """The media type and the bytes."""
        row = await self._database.row(GET_UPLOAD, owner=owner, id=id)
        return (row["media_type"], row["content"]) if row else None

    async def is_shown(self, chat: UUID, turn: UUID | None, id: UUID) -> bool:
        """Whether a turn of the chat, or this turn of it, refers to the upload."""
        return await self._database.row(SHOWS_UPLOAD, chat=chat, turn=turn, id=str(id)) is not None

    async def is_of_chat(self, chat: UUID | None, turn: UUID | None, id: UUID) -> bool:
        """Whether a turn of the chat refers to the upload, or it was uploaded for the chat; with `turn`, whether this
        turn refers to it.
        """
        return await self._database.row(IS_OF_CHAT, chat=chat, turn=turn, id=str(id)) is not None

    async def keep_for_chat(self, chat: UUID, id: UUID) -> None:
        """Notes that the upload is for the chat."""
        await self._database.row(KEEP_FOR_CHAT, chat=chat, upload=id)

    async def contents(self, ids: Collection[UUID]) -> Mapping[UUID, bytes]:
        """The bytes of uploads that are still there, of any owner: only for turns that refer to them."""
        rows = await self._database.rows(GET_CONTENTS, ids=list(ids))
        return {row["id"]: row["content"] for row in rows}

    async def delete(self, owner: str, id: UUID, *, only_unused: bool = False) -> bool:
        """Deletes an upload. False where there is none, or where `only_unused` is set and a turn refers to it."""
        return await self._database.row(DELETE_UPLOAD, owner=owner, id=id, only_unused=only_unused) is not None

    async def sweep(self, kept: float) -> int:
        """Deletes uploads that are older than `kept` seconds and that no turn refers to; returns their number."""
        return len(await self._database.rows(SWEEP, kept=kept))


def _upload(row: Row) -> Upload:
    return Upload(row["id"], row["media_type"], row["size"], row["created"])

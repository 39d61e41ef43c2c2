"""Uploads: files that turns refer to. They never change; equal bytes of one owner are one upload."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from turnstream.domain.limits import ReachedLimit
from turnstream.domain.plans import Plan
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.kit.offload import offload
from turnstream.storage.contents import BYTES_SIZE, UPLOADS
from turnstream.storage.database import LONG, Database, Row, Statement, Transaction
from turnstream.storage.retention import NO_ID, ROWS
from turnstream.storage.rows import MAY_NAME_UPLOADS, OPEN_STATUSES

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
# One file of an owner is put after the other, so that two do not take the same room.
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
# Only a source counts as a reference here: a title, which the client writes, may have any id in it.
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
GET_OLD_UPLOADS = Statement(
    """
    SELECT id FROM uploads
    WHERE id > :after AND created_at < now() - make_interval(secs => :kept) ORDER BY id LIMIT :most
    """,
    timeout=LONG,
)
# Blocks with files. Any text in them that looks like an id counts as a reference, and in the layouts of answers too:
# better to keep an upload too many.
_FILES: Final = f"{MAY_NAME_UPLOADS} AND data IS NOT NULL"
_IDS: Final = "LATERAL regexp_matches(content, '[0-9a-f]{8}-[0-9a-f-]{27}', 'g') AS found"


def _named(table: str, key: Sequence[str], content: str, condition: str) -> Statement:
    """The ids in up to `most` rows behind a place in the order of `key`, and the place that it has come to."""
    columns, place = ", ".join(key), ", ".join(f":{name}" for name in key)
    return Statement(
        f"""
        WITH passed AS MATERIALIZED (
            SELECT {columns}, {content} AS content FROM {table}
            WHERE ({columns}) > ({place}) AND {condition} ORDER BY {columns} LIMIT :most
        )
        SELECT {columns}, ARRAY(SELECT DISTINCT found[1] FROM passed, {_IDS}) AS ids FROM passed
        ORDER BY {", ".join(f"{name} DESC" for name in key)} LIMIT 1
        """,
        timeout=LONG,
    )


# The order of turns is that of their creation: what is sent while blocks are read comes at the end.
NAMED: Final[Sequence[tuple[Statement, Mapping[str, Any]]]] = (
    (
        _named("asks", ["turn_id", "round", "tool_use_id"], "answer->>'layout'", "answer->>'layout' IS NOT NULL"),
        {"turn_id": NO_ID, "round": 0, "tool_use_id": ""},
    ),
    (_named("blocks", ["turn_id", "index"], "data::text", _FILES), {"turn_id": NO_ID, "index": -1}),
)
# Asked again for the turns that are new since the references were read, and for those that may have changed.
DELETE_UNNAMED = Statement(
    f"""
    WITH texts AS (
        SELECT data::text AS content FROM blocks WHERE {_FILES} AND turn_id >= :since
        UNION ALL
        SELECT data::text FROM turns JOIN blocks ON turn_id = turns.id WHERE {_FILES} AND status IN {OPEN_STATUSES}
        UNION ALL
        SELECT answer->>'layout' FROM turns JOIN asks ON turn_id = turns.id
        WHERE answer->>'layout' IS NOT NULL AND status IN {OPEN_STATUSES}
    ), named AS MATERIALIZED (
        SELECT DISTINCT found[1] AS id FROM texts, {_IDS}
    )
    DELETE FROM uploads
    WHERE id = ANY(CAST(:ids AS uuid[])) AND created_at < now() - make_interval(secs => :kept)
        AND NOT EXISTS (SELECT FROM named WHERE named.id = uploads.id::text)
    RETURNING id
    """,
    timeout=LONG,
)

_CANDIDATES = 20_000  # uploads that one walk over all references is for; some megabytes of memory
_STEP = 100  # uploads that are deleted at once; each may have megabytes
_MARGIN = 3_600_000  # milliseconds by which the clocks of replicas may differ


@dataclass(frozen=True, slots=True)
class Upload:
    """A file without its bytes. `size` is in bytes; `created` is false if the file was there already. `name` and
    `purpose` come from the last upload that had them.
    """

    id: UUID
    media_type: str
    size: int
    created: bool = False
    name: str | None = None
    purpose: str | None = None

    @property
    def source(self) -> dict[str, str]:
        """The source object by which blocks refer to it."""
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
        """The same, unless the files of the owner are then more than the plan allows."""
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
        """Returns the uploads of `ids` that belong to the owner."""
        rows = await self._database.rows(DESCRIBE_UPLOADS, owner=owner, ids=list(ids))
        return {row["id"]: upload_from(row) for row in rows}

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
        """Deletes an upload. Returns False if there is none, or if `only_unused` is set and a turn refers to it."""
        return await self._database.row(DELETE_UPLOAD, owner=owner, id=id, only_unused=only_unused) is not None

    async def sweep(self, kept: float) -> AsyncGenerator[int, None]:
        """Deletes uploads that are older than `kept` seconds and that no turn refers to. References have no index by
        upload: all are read, once for many uploads, in portions.
        """
        after: UUID | None = NO_ID
        while after is not None:
            since = UUID(int=max(0, int(CLOCK.seconds() * 1000) - _MARGIN) << 80)
            unnamed: set[str] = set()
            while after is not None and len(unnamed) < _CANDIDATES:
                rows = await self._database.rows(GET_OLD_UPLOADS, after=after, most=ROWS, kept=kept)
                unnamed.update(str(row["id"]) for row in rows)
                after = rows[-1]["id"] if rows else None
                yield 0
            for statement, begin in NAMED:
                place = begin
                while unnamed and (row := await self._database.row(statement, most=ROWS, **place)) is not None:
                    unnamed.difference_update(row["ids"])
                    place = {name: row[name] for name in begin}
                    yield 0
            found = sorted(unnamed)
            for start in range(0, len(found), _STEP):
                some = found[start : start + _STEP]
                yield len(await self._database.rows(DELETE_UNNAMED, ids=some, since=since, kept=kept))


def upload_from(row: Row) -> Upload:
    return Upload(row["id"], row["media_type"], row["size"], row["created"], row["file_name"], row["purpose"])

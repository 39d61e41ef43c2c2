"""Exports and imports the data of an owner as files. Import reads the files in the order in which export writes them.

Each chat is read from one snapshot. A row is a line of JSON with column names. JSON columns are copied as stored, but
the headers of HTTP tools are masked. Tokens, webhooks and the tool cache are not archived.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby, islice
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

import msgspec

from turnstream.domain.errors import ConfigError, StatementRefused
from turnstream.domain.identity import Identity
from turnstream.domain.secret_headers import masked_settings, masked_tool
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.contents import (
    ASKS,
    BLOCKS,
    CHATS,
    DOCUMENTS,
    REQUESTS,
    SCHEDULES,
    STEERS,
    TEXT_MARK,
    UPLOADS,
    Codec,
)
from turnstream.storage.database import LONG, Database, Statement, Transaction
from turnstream.storage.ownership import Path
from turnstream.storage.rows import TOOLS

VERSION = 1
HEAD = "archive.json"
END, END_CONTENT = "end.json", b"{}\n"

Section = Literal["documents", "uploads", "chats"]
NIL = UUID(int=0)
# The last file of a chat: with it, the chat is complete.
_LAST = "end.json"

_BATCH = 200  # rows
_FILE_BYTES = 4_000_000  # a file may exceed the limit by one row

_OF_TURNS: Final = "turn_id IN (SELECT id FROM turns WHERE chat_id = :chat)"
_BY_PATH: Final[Mapping[Path | None, str]] = {"chat_id": "chat_id = :chat", "turn_id": _OF_TURNS}
# Conditions that select the rows of a chat, for tables that have a column for the owner.
_BY_TABLE: Final = {
    "chats": "id = :chat AND owner = :owner",
    "idempotency_keys": f"owner = :owner AND {_OF_TURNS}",
    "schedules": "owner = :owner AND chat_id = :chat",
}


def _of_chat() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields each table with the condition that selects the rows of a chat, and the order in which the rows are
    inserted.
    """
    for table in ALL_TABLES.values():
        ownership, order = table.ownership, ", ".join(f'"{name}"' for name in table.primary_key)
        condition = _BY_TABLE.get(table.name) or _BY_PATH.get(ownership.path)
        if ownership.nature == "content" and condition is not None:
            yield table.name, (condition, "created_at, id" if table.name == "turns" else order)


_OF_CHAT: Final = dict(_of_chat())
# Expressions for columns whose values change at the import. Turns that were open at the export end as cancelled,
# because an import must not cause model calls or tool calls. Waiting turns keep waiting.
_IMPORTED: Final[Mapping[str, Mapping[str, str]]] = {
    "turns": {
        "status": "CASE WHEN row.status = 'running' THEN 'queued' ELSE row.status END",
        "request": "kept.request",
        "replica": "NULL",
        "cancel_requested": "row.cancel_requested OR row.status IN ('queued', 'running')",
    },
    # The server that wrote the archive may still run the schedule, so the schedule is paused here.
    "schedules": {"paused": "coalesce(row.paused, 'person')"},
    # If a document's text is encrypted, only its path can be searched.
    "documents": {"searchable": f"CASE WHEN starts_with(row.content, '{TEXT_MARK}') THEN 0 ELSE row.searchable END"},
}
_WHOLE_REQUEST: Final = f"""coalesce(
        (left(request::text, -1) || ', "tools": ' || ({TOOLS})::text || '}}')::json, request
    ) AS request"""
# Jobs are not archived, so a turn that waits only for jobs is archived as queued, and ends as cancelled.
_STATUS: Final = """CASE
        WHEN status = 'waiting' AND EXISTS (SELECT FROM jobs WHERE turn_id = turns.id AND settled_at IS NULL)
            AND NOT EXISTS (SELECT FROM asks WHERE turn_id = turns.id AND answer IS NULL) THEN 'queued'
        ELSE status
    END AS status"""
_SEARCHABLE: Final = f"CASE WHEN starts_with(content, '{TEXT_MARK}') THEN 600000 ELSE searchable END AS searchable"
# The secrets of a trigger are not archived. After the import, the owner creates a new secret.
_TRIGGER: Final = "(trigger::jsonb - 'secrets' - 'until')::json AS trigger"
_CONVERTED: Final = {
    ("turns", "request"): _WHOLE_REQUEST,
    ("turns", "status"): _STATUS,
    ("schedules", "trigger"): _TRIGGER,
    ("documents", "searchable"): _SEARCHABLE,
}
# Tables whose contents may be encrypted. An archive has these contents unencrypted.
_CONTENTS: Final = {
    contents.table: contents for contents in (UPLOADS, DOCUMENTS, BLOCKS, CHATS, REQUESTS, SCHEDULES, ASKS, STEERS)
}
# Tables whose ids belong to a chat. If a chat gets a new id, these ids change, too.
_WITH_IDS = frozenset({"chats", "turns", "steers", "grants", "schedules"})
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _columns(table: str) -> tuple[str, ...]:
    """Returns the columns of an archived row. The bytes of an upload are in a separate file, and a request includes its
    tools.
    """
    columns, left = ALL_TABLES[table].columns.values(), {"owner", "queue_owner", "tool_set"}
    return tuple(column.name for column in columns if not column.computed and column.name not in left)


def _all_columns() -> dict[str, tuple[str, ...]]:
    return {table: _columns(table) for table in ("documents", "uploads", *_OF_CHAT)}


def _named(columns: Mapping[str, Sequence[str]]) -> set[str]:
    return {f"{table}.{name}" for table, names in columns.items() for name in names}


def _lines_of(table: str, condition: str, order: str) -> Statement:
    names = [name for name in _columns(table) if (table, name) != ("uploads", "content")]
    columns = ", ".join(_CONVERTED.get((table, name), f'"{name}"') for name in names)
    # Within JSON, a line break can occur only between two tokens, so it may be replaced by a space.
    return Statement(
        f"""
        SELECT translate(row_to_json(row)::text, chr(10) || chr(13), '  ') AS line
        FROM (SELECT {columns} FROM {table} WHERE {condition} ORDER BY {order}) AS row
        """,
        timeout=LONG,
    )


GET_DOCUMENT_LINES = _lines_of("documents", "owner = :owner", 'path COLLATE "C"')
GET_UPLOAD_LINE = _lines_of("uploads", "owner = :owner AND id = :id", "id")
GET_CHAT_LINES: Final = {table: _lines_of(table, *place) for table, place in _OF_CHAT.items()}
GET_UPLOAD_CONTENT = Statement(
    "SELECT digest, content FROM uploads WHERE owner = :owner AND id = :id", timeout=LONG, opens=[UPLOADS]
)
# Selects a chat, and the chats of the agents that its turns called.
_FAMILY: Final = """
        WITH RECURSIVE family AS (
            SELECT CAST(:chat AS uuid) AS id
            UNION
            SELECT chats.id FROM family JOIN turns ON chat_id = family.id JOIN chats ON of_turn = turns.id
        ) SELECT id FROM family"""
# The archive of a single chat has only the uploads that the chat uses.
NEXT_IDS: Final = {
    "uploads": Statement(
        f"""
        SELECT id FROM uploads WHERE owner = :owner AND id >= :begin AND (CAST(:chat AS uuid) IS NULL OR EXISTS (
            SELECT FROM turns JOIN blocks ON turn_id = turns.id
            WHERE chat_id IN ({_FAMILY}) AND data IS NOT NULL AND position(uploads.id::text IN data::text) > 0
        ) OR EXISTS (
            SELECT FROM turns JOIN asks ON turn_id = turns.id
            WHERE chat_id IN ({_FAMILY}) AND answer IS NOT NULL AND position(uploads.id::text IN answer::text) > 0
        ))
        ORDER BY id LIMIT :most
        """,
        timeout=LONG,
    ),
    "chats": Statement(
        f"""
        SELECT id FROM chats
        WHERE owner = :owner AND id >= :begin AND (CAST(:chat AS uuid) IS NULL OR id IN ({_FAMILY}))
        ORDER BY id LIMIT :most
        """,
        timeout=LONG,
    ),
}

FIND_CHAT_OWNER = Statement("SELECT owner FROM chats WHERE id = :chat")
PUT_UPLOAD_AS_IT_WAS = Statement(
    """
    WITH same AS (
        SELECT id FROM uploads WHERE owner = :owner AND digest = :digest
    ), made AS (
        INSERT INTO uploads (id, owner, digest, media_type, content, created_at, file_name, purpose)
        SELECT id, :owner, :digest, media_type, :content, created_at, CAST(:file_name AS text), purpose
        FROM json_populate_record(NULL::uploads, CAST(:line AS json)) WHERE NOT EXISTS (SELECT FROM same)
        ON CONFLICT (id) DO NOTHING RETURNING id
    )
    SELECT id, false AS made FROM same UNION ALL SELECT id, true FROM made
    """,
    timeout=LONG,
    seals=[UPLOADS],
)


class ArchivePart(NamedTuple):
    """One file of an archive. While the reader holds an `in_transaction` file, a Postgres snapshot stays open."""

    name: str
    content: bytes

    @property
    def in_transaction(self) -> bool:
        section, _, rest = self.name.partition("/")
        return section == "documents" or (section == "chats" and not rest.endswith(f"/{_LAST}"))


class ArchiveHead(msgspec.Struct, frozen=True):
    """The first file of an archive. `columns` has the columns of each table. `chat` is set if the archive has a single
    chat.
    """

    format: str
    version: int
    owner: str
    columns: dict[str, tuple[str, ...]]
    chat: UUID | None = None


class _CutOff(Exception):
    """The archive ends within a chat, so no row of that chat is stored."""


class _Keys(msgspec.Struct, frozen=True):
    """The members of a line that the import checks."""

    id: UUID | None = None
    chat_id: UUID | None = None
    turn_id: UUID | None = None
    status: str | None = None


_head = msgspec.json.Decoder(ArchiveHead)
_keys = msgspec.json.Decoder(_Keys)
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])


def head_of(content: bytes) -> ArchiveHead:
    """Decodes the first file of an archive. Raises ConfigError for an archive of an unknown version."""
    try:
        head = _head.decode(content)
    except msgspec.DecodeError as error:
        raise ConfigError(f"The file is no archive of turnstream: {error}.") from None
    known = _all_columns()
    unknown = sorted(head.columns.keys() - known.keys() | _named(head.columns) - _named(known))
    if head.format != "turnstream" or head.version > VERSION or unknown:
        raise ConfigError(
            f"The archive was made by a newer turnstream (version {head.version} of archives"
            f"{', with ' + ', '.join(unknown) if unknown else ''}): import the archive with that version."
        )
    return head


class OwnerExport:
    """Exports the files of an archive, for an owner or for one chat. `files` returns more files of a turn (its
    recordings), with their names.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        chat: UUID | None = None,
        files: Callable[[UUID], Iterable[tuple[str, bytes]]] = lambda _turn: (),
    ) -> None:
        self._database = database
        self._owner = owner
        self._chat = chat
        self._files = files

    @property
    def head(self) -> ArchivePart:
        head = ArchiveHead("turnstream", VERSION, self._owner, _all_columns(), self._chat)
        return ArchivePart(HEAD, msgspec.json.format(msgspec.json.encode(head)))

    async def parts(self, section: Section = "documents", begin: UUID = NIL) -> AsyncIterator[ArchivePart]:
        """Yields the files after the head. Starts with the given `section`, and there with the upload or the chat
        `begin`.
        """
        sections = get_args(Section)
        if section == "documents" and self._chat is None:
            async with self._database.transaction(snapshot=True) as moment:
                async for part in _files_of(moment, "documents/", "documents", GET_DOCUMENT_LINES, owner=self._owner):
                    yield part
        for each in sections[max(1, sections.index(section)) :]:
            async for id in self._ids(each, begin if each == section else NIL):
                async for part in self._upload(id) if each == "uploads" else self._chat_parts(id):
                    yield part
        yield ArchivePart(END, END_CONTENT)

    async def _ids(self, section: str, begin: UUID) -> AsyncIterator[UUID]:
        values: dict[str, Any] = {"owner": self._owner, "chat": self._chat, "most": _BATCH}
        while rows := await self._database.rows(NEXT_IDS[section], begin=begin, **values):
            for row in rows:
                yield row["id"]
            begin = UUID(int=rows[-1]["id"].int + 1)

    async def _upload(self, id: UUID) -> AsyncIterator[ArchivePart]:
        row = await self._database.row(GET_UPLOAD_LINE, owner=self._owner, id=id)
        content = await self._database.row(GET_UPLOAD_CONTENT, owner=self._owner, id=id)
        if row is not None and content is not None:
            line = await _opened(self._database.codec, "uploads", self._owner, row["line"])
            yield ArchivePart(f"uploads/{id}/row.jsonl", f"{line}\n".encode())
            yield ArchivePart(f"uploads/{id}/content", content["content"])

    async def _chat_parts(self, id: UUID) -> AsyncIterator[ArchivePart]:
        turns: list[UUID] = []
        async with self._database.transaction(snapshot=True) as moment:
            for place, (table, statement) in enumerate(GET_CHAT_LINES.items()):
                prefix = f"chats/{id}/{place}-{table}-"
                async for part in _files_of(moment, prefix, table, statement, owner=self._owner, chat=id):
                    if table == "turns":
                        turns += [key for line in part.content.splitlines() if (key := _keys.decode(line).id)]
                    yield part
        yield ArchivePart(f"chats/{id}/{_LAST}", END_CONTENT)
        for turn in turns:
            for name, content in self._files(turn):
                yield ArchivePart(f"recordings/{id}/{turn}/{name}", content)


def _masked(line: str) -> str:
    """Returns the row of a chat or a turn, with the secrets of its tools masked."""
    if "headers" not in line and "authorization" not in line:
        return line
    row = json.loads(line)
    if row.get("settings"):
        row["settings"] = masked_settings(row["settings"])
    elif request := row.get("request"):
        row["request"] = masked_settings(request)
        if definitions := request.get("provider_tools"):
            masked = [masked_tool(json.loads(each)) for each in definitions]
            row["request"]["provider_tools"] = [json.dumps(each, ensure_ascii=False) for each in masked]
    else:
        return line
    return json.dumps(row, ensure_ascii=False)


async def _opened(codec: Codec | None, table: str, owner: str, line: str) -> str:
    """Returns the line with its contents decrypted."""
    if codec is None or table not in _CONTENTS or TEXT_MARK not in line:
        return line
    row, values = _values_of(table, line)
    (opened,) = await codec.open(_CONTENTS[table], {"owner": owner}, [values])
    return _with_values(table, row, values, opened)


async def _sealed(codec: Codec | None, table: str, owner: str, line: str) -> str:
    """Returns the line with its contents in the form in which the database stores them."""
    if codec is None or table not in _CONTENTS:
        return line
    row, values = _values_of(table, line)
    return _with_values(table, row, values, await codec.seal(_CONTENTS[table], {**values, "owner": owner}))


def _values_of(table: str, line: str) -> tuple[dict[str, msgspec.Raw], dict[str, Any]]:
    """Returns all columns of the line as JSON, and the decoded values of the contents and keys. Contents that are JSON
    stay undecoded.
    """
    row, contents = _raw.decode(line), _CONTENTS[table]
    values = dict[str, Any]()
    for name in (*contents.columns, *contents.key):
        kind, value = contents.columns.get(name), msgspec.json.decode(row.get(name, b"null"))
        if kind == "digest":
            values[name] = bytes.fromhex(value.removeprefix("\\x"))
        elif value is not None:
            values[name] = bytes(row[name]).decode() if kind in {"json", "labelled", "members"} else value
    return row, values


def _with_values(table: str, row: dict[str, msgspec.Raw], before: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    for name, kind in _CONTENTS[table].columns.items():
        if kind in {"text", "json", "labelled", "members"} and values.get(name) != before.get(name):
            value = msgspec.json.encode(values[name]) if kind == "text" else values[name].encode()
            row[name] = msgspec.Raw(value)
    return msgspec.json.encode(row).decode()


async def _files_of(
    moment: Transaction, prefix: str, table: str, statement: Statement, *, owner: str, **values: Any
) -> AsyncIterator[ArchivePart]:
    number, size, lines = 0, 0, list[bytes]()
    async for rows in moment.batches(statement, _BATCH, owner=owner, **values):
        for row in rows:
            line = await _opened(moment.codec, table, owner, row["line"])
            lines.append(f"{_masked(line)}\n".encode())
            size += len(lines[-1])
            if size >= _FILE_BYTES:
                number += 1
                yield ArchivePart(f"{prefix}{number:06}.jsonl", b"".join(lines))
                size, lines = 0, []
    if lines:
        yield ArchivePart(f"{prefix}{number + 1:06}.jsonl", b"".join(lines))


@dataclass(slots=True)
class ImportCounts:
    """Counts the imported rows and the rows that existed before. `moved` maps the old ids of chats to their new ids: a
    chat gets a new id if another owner has a chat with the old id.
    """

    made: dict[str, int] = field(default_factory=lambda: {"documents": 0, "uploads": 0, "chats": 0, "recordings": 0})
    present: dict[str, int] = field(default_factory=lambda: {"documents": 0, "uploads": 0, "chats": 0})
    moved: dict[UUID, UUID] = field(default_factory=dict)
    owner: str = ""
    whole: bool = False


class OwnerImport:
    """Imports the files of an archive. If an archive is imported again, the second import completes the first import,
    and imports no row twice.
    """

    def __init__(
        self,
        database: Database,
        owner: str | None,
        keep: Callable[[UUID, str, bytes], bool],
        check_chat: Callable[[Mapping[str, Any]], None],
        *,
        trusted: bool,
    ) -> None:
        """`owner` replaces the owner that the archive names. `keep` stores an additional file of a turn, or returns
        False. `check_chat` raises ValueError for a chat's row that must not be stored. Unless the archive is `trusted`,
        its grants and the approvals of waiting turns are omitted, because both allow tool calls.
        """
        self._database = database
        self._owner = owner or ""
        self._keep = keep
        self._check_chat = check_chat
        self._trusted = trusted
        self._put: dict[str, Statement] = {}
        # Maps ids in the archive to ids here, if they differ. `_turns` and `_waiting` have turns of the last imported
        # chat.
        self._uploads: dict[bytes, bytes] = {}
        self._ids: dict[bytes, bytes] = {}
        self._turns: set[UUID] = set()
        self._waiting: set[UUID] = set()

    async def run(self, parts: Iterator[ArchivePart]) -> ImportCounts:
        """Imports all `parts`, and returns the counts. Raises ConfigError if the file is not an archive, or has rows
        that cannot be stored.
        """
        first = next(parts, None)
        if first is None or first.name != HEAD:
            raise ConfigError(f"The file is no archive of turnstream: it must begin with {HEAD}.")
        head = head_of(first.content)
        self._owner = self._owner or head.owner
        try:
            Identity(self._owner)
        except ValueError as error:
            raise ConfigError(
                f"The owner of the archive cannot be an owner here; name another owner: {error}."
            ) from None
        self._put = {table: _insert(table, columns) for table, columns in head.columns.items() if table != "uploads"}
        counts = ImportCounts(owner=self._owner)
        for (section, id), group in groupby(parts, _group_of):
            try:
                match section:
                    case "documents":
                        await self._documents(group, counts)
                    case "uploads":
                        await self._upload(UUID(id), list(islice(group, 2)), counts)
                    case "chats":
                        with suppress(_CutOff):
                            await self._chat(UUID(id), group, counts)
                    case "recordings":
                        self._recordings(group, counts)
                    case _:
                        counts.whole = section == END
            except (StatementRefused, ValueError, LookupError) as error:
                raise ConfigError(f"The archive has rows at {section}/{id} that cannot be stored: {error}") from error
        return counts

    async def _documents(self, group: Iterator[ArchivePart], counts: ImportCounts) -> None:
        for part in group:
            found = part.content.splitlines()  # a text has no more line ends than bytes
            codec = self._database.codec
            lines = [await _sealed(codec, "documents", self._owner, line.decode()) for line in found]
            made = await self._database.rows(self._put["documents"], owner=self._owner, lines=lines)
            counts.made["documents"] += len(made)
            counts.present["documents"] += len(lines) - len(made)

    async def _upload(self, id: UUID, group: Sequence[ArchivePart], counts: ImportCounts) -> None:
        if len(group) < 2:
            return  # the archive ends within the upload
        line, content = (part.content for part in group)
        name = json.loads(line).get("file_name")
        values = {"owner": self._owner, "digest": sha256(content).digest(), "content": content, "file_name": name}
        row = await self._database.row(PUT_UPLOAD_AS_IT_WAS, line=line.decode(), **values)
        if row is None:  # an upload of another owner has this id
            line = line.replace(str(id).encode(), str(_moved(id, self._owner)).encode())
            row = await self._database.row(PUT_UPLOAD_AS_IT_WAS, line=line.decode(), **values)
        assert row is not None
        counts.made["uploads"] += row["made"]
        counts.present["uploads"] += not row["made"]
        if row["id"] != id:
            self._uploads[str(id).encode()] = str(row["id"]).encode()

    async def _chat(self, id: UUID, group: Iterator[ArchivePart], counts: ImportCounts) -> None:
        """Imports all rows of a chat in one transaction, unless the chat exists."""
        self._turns, self._waiting, self._ids = set(), set(), dict(self._uploads)
        async with self._database.transaction() as connection:
            now = id
            taken = await connection.row(FIND_CHAT_OWNER, chat=id)
            if taken is not None and taken["owner"] != self._owner:
                now = _moved(id, self._owner)
                taken = await connection.row(FIND_CHAT_OWNER, chat=now)
            if taken is not None:
                counts.present["chats"] += 1
                return
            whole = False
            for part in group:
                whole = part.name.endswith(_LAST)
                if whole:
                    break
                table = part.name.split("-")[-2]
                if table == "grants" and not self._trusted:
                    continue
                lines = [self._line(table, line, now, moves=now != id) for line in part.content.splitlines()]
                lines = [await _sealed(connection.codec, table, self._owner, line) for line in lines]
                await connection.rows(self._put[table], owner=self._owner, lines=lines)
            if not whole:
                raise _CutOff
        counts.made["chats"] += 1
        if now != id:
            counts.moved[id] = now

    def _line(self, table: str, line: bytes, chat: UUID, *, moves: bool) -> str:
        """Returns a line in which ids are replaced by ids of this database. Raises ValueError if the row refers to
        another chat.
        """
        id = _keys.decode(line).id
        if moves and table in _WITH_IDS and id is not None:
            self._ids[str(id).encode()] = str(_moved(id, self._owner)).encode()
        if self._ids:
            line = _UUID.sub(lambda found: self._ids.get(found[0], found[0]), line)
        keys = _keys.decode(line)
        match table:
            case "chats":
                fits = keys.id == chat
            case "turns" | "grants" | "schedules":
                fits = keys.chat_id == chat
            case _:
                fits = keys.turn_id in self._turns
        if not fits:
            raise ValueError(f"a row of {table} is not of this chat")
        if table == "turns" and keys.id is not None:
            self._turns.add(keys.id)
            if keys.status == "waiting":
                self._waiting.add(keys.id)
        if table == "chats":
            self._check_chat(json.loads(line))
        if table == "asks" and not self._trusted and keys.turn_id in self._waiting:
            return json.dumps({**json.loads(line), "answer": None, "answered_at": None})  # the person is asked again
        return line.decode()

    def _recordings(self, group: Iterator[ArchivePart], counts: ImportCounts) -> None:
        for part in group:
            _, _, turn, name = part.name.split("/")
            now = UUID(self._ids.get(turn.encode(), turn.encode()).decode())
            if now in self._turns and self._keep(now, name, part.content):
                counts.made["recordings"] += 1


def _group_of(part: ArchivePart) -> tuple[str, str]:
    section, _, rest = part.name.partition("/")
    return section, rest.partition("/")[0] if section != "documents" else ""


def _insert(table: str, columns: Sequence[str]) -> Statement:
    """Returns a statement that inserts rows for the owner :owner. A column that an older archive does not have gets its
    default.
    """
    values = {name: _IMPORTED.get(table, {}).get(name, f'row."{name}"') for name in columns}
    source = f"unnest(CAST(:lines AS text[])) AS line, json_populate_record(NULL::{table}, CAST(line AS json)) AS row"
    if "owner" in ALL_TABLES[table].columns:
        values["owner"] = ":owner"
    if table == "turns":
        values["tool_set"], source = "kept.tool_set", f"{source}, keep_tool_set(:owner, row.request) AS kept"
    names = ", ".join(f'"{name}"' for name in values)
    # Rows that the owner already has are not changed.
    kept = " ON CONFLICT DO NOTHING" if table in {"documents", "idempotency_keys"} else ""
    return Statement(
        f"""
        INSERT INTO {table} ({names}) SELECT {", ".join(values.values())} FROM {source}
        {kept} RETURNING 1 AS made
        """,
        timeout=LONG,
    )


def _moved(id: UUID, owner: str) -> UUID:
    """Returns a new id, which is always the same for the same id and owner. The order of ids is kept: all ids move by
    the same distance.
    """
    distance = int.from_bytes(sha256(owner.encode()).digest()[:7]) | 1
    high, low = id.int >> 64 & 0xFFF, id.int & (1 << 62) - 1
    value = (high << 62 | low) + distance
    kept = id.int & ~(0xFFF << 64 | (1 << 62) - 1)
    return UUID(int=kept | (value >> 62 & 0xFFF) << 64 | value & (1 << 62) - 1)

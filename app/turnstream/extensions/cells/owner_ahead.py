"""Copies the ended turns, tool sets, files and documents of a moving owner before the owner is held, while the owner
still works.

In the new cell, the copies belong to another name (`arriving_name`), so that no request finds them. When the owner is
held, both cells are compared: new and changed rows are copied, and deleted rows are deleted. Then all copies get the
owner's name. The duration of this step depends on the number of rows, not on their length.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import arriving_name
from turnstream.extensions.cells.copying import copy_rows
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import Database, Row, Statement, Transaction

_TIMEOUT: Final = 1800.0  # seconds for one statement, as for the statements of the whole copy
_PORTION: Final = 32_000_000  # approximate bytes that one transaction copies
_PASSES: Final = 5  # maximum number of passes of the copy ahead, if the owner keeps making changes


def stored_columns(table: str) -> Sequence[str]:
    """Returns the columns of a table, without columns that Postgres computes."""
    return [column.name for column in ALL_TABLES[table].columns.values() if not column.computed]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A table that is copied ahead. Rows with the same key and version have the same content; a row without a version
    may still change.

    `copy` reads the rows of :owner, with :name as their owner. `parts` read the rows of other tables that depend on
    these rows. `take` gives the rows of :name to the owner, updates the short columns that may have changed (`live`),
    and returns the `number` of rows. `renew` copies long columns again if `updated_at` differs.
    """

    columns: Sequence[str]
    list: Statement
    copy: Statement
    delete: Statement
    take: Statement
    live: Sequence[str] = ()
    parts: Mapping[str, Statement] = field(default_factory=dict)
    renew: "_Renewal | None" = None


@dataclass(frozen=True, slots=True)
class _Renewal:
    """Copies columns of changed rows again: `read` returns them by `key`, and `write` sets them in the new cell."""

    columns: Sequence[str]
    read: Statement
    write: Statement


# All data of a chat that can change is in the chat's row, and is copied at the end.
_CHATS: Final = _Copied(
    ("id", "owner", "title", "system_prompt", "settings", "of_turn", "created_at", "updated_at"),
    Statement(
        """
        SELECT id AS key, true AS version, created_at, updated_at,
            1000 + coalesce(octet_length(title), 0) + coalesce(octet_length(system_prompt), 0) AS size
        FROM chats WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    Statement(
        """
        SELECT id, CAST(:name AS text), title, system_prompt, settings, of_turn, created_at, updated_at
        FROM chats WHERE owner = :owner AND id = ANY(CAST(:key AS uuid[]))
        """,
        timeout=_TIMEOUT,
    ),
    Statement("DELETE FROM chats WHERE owner = :name AND id = ANY(CAST(:key AS uuid[]))", timeout=_TIMEOUT),
    Statement(
        """
        WITH taken AS (
            UPDATE chats SET owner = :owner, created_at = live.created_at, updated_at = live.updated_at
            FROM unnest(
                CAST(:key AS uuid[]), CAST(:created_at AS timestamptz[]), CAST(:updated_at AS timestamptz[])
            ) AS live (id, created_at, updated_at)
            WHERE owner = :name AND chats.id = live.id RETURNING chats.id
        )
        SELECT count(*) AS number FROM taken
        """,
        timeout=_TIMEOUT,
    ),
    live=("created_at", "updated_at"),
    renew=_Renewal(
        ("title", "system_prompt", "settings"),
        Statement(
            "SELECT id AS key, title, system_prompt, settings FROM chats WHERE id = ANY(CAST(:key AS uuid[]))",
            timeout=_TIMEOUT,
        ),
        Statement(
            """
            UPDATE chats SET title = new.title, system_prompt = new.system_prompt, settings = new.settings
            FROM unnest(
                CAST(:key AS uuid[]), CAST(:title AS text[]), CAST(:system_prompt AS text[]), CAST(:settings AS json[])
            ) AS new (id, title, system_prompt, settings)
            WHERE owner = :name AND chats.id = new.id RETURNING chats.id
            """,
            timeout=_TIMEOUT,
        ),
    ),
)
# After a turn has ended, only the number of failed hooks changes, and asks can expire. If a failover loses the end of a
# turn, the turn ends again at another time. Sizes are not queried: with this fixed size, a portion has a thousand
# turns.
_TURNS: Final = _Copied(
    stored_columns("turns"),
    Statement(
        """
        SELECT turns.id AS key, parent_id, 32000 AS size, CASE WHEN ended_at IS NOT NULL THEN concat_ws(
            ' ', attempt, hook_failures, extract(epoch FROM ended_at), CASE WHEN asked > 0 THEN (
                SELECT extract(epoch FROM max(answered_at)) FROM asks WHERE turn_id = turns.id
            ) END
        ) END AS version
        FROM turns JOIN chats ON chats.id = chat_id WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    Statement(
        f"""
        SELECT {", ".join(f"turns.{name}" for name in stored_columns("turns"))}
        FROM turns JOIN chats ON chats.id = chat_id
        WHERE owner = :owner AND turns.id = ANY(CAST(:key AS uuid[])) AND (ended_at IS NOT NULL OR :held)
        """,
        timeout=_TIMEOUT,
    ),
    Statement(
        """
        DELETE FROM turns USING chats
        WHERE chats.id = chat_id AND owner = :name AND turns.id = ANY(CAST(:key AS uuid[]))
        """,
        timeout=_TIMEOUT,
    ),
    # The search must also index rows that were copied ahead. They are added as the triggers of the search add rows:
    # oldest first.
    Statement(
        """
        WITH indexed AS (
            INSERT INTO search_pending (owner, chat_id, turn_id)
            SELECT owner, chats.id, turns.id FROM chats LEFT JOIN turns ON chat_id = chats.id AND ended_at IS NOT NULL
            WHERE owner = :owner AND search_is_active() ORDER BY turns.created_at, turns.id
        ), waiting AS (
            INSERT INTO search_backlog (chat_id) SELECT id FROM chats WHERE owner = :owner AND NOT search_is_active()
            ON CONFLICT DO NOTHING
        )
        SELECT count(*) AS number FROM turns JOIN chats ON chats.id = chat_id WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    parts={
        table.name: Statement(
            f"""
            SELECT {", ".join(f'"{name}"' for name in stored_columns(table.name))}
            FROM {table.name} WHERE turn_id = ANY(CAST(:key AS uuid[]))
            """,
            timeout=_TIMEOUT,
        )
        for table in ALL_TABLES.values()
        if (each := table.ownership).path == "turn_id" and each.nature == "content"
    },
)
_UPLOADS: Final = _Copied(
    ("id", "owner", "digest", "media_type", "content", "created_at", "file_name", "purpose"),
    Statement(
        """
        SELECT id AS key, digest AS version, octet_length(content) AS size, media_type, created_at,
            file_name, purpose
        FROM uploads WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    # The copy of a file gets the present time, because a sweep deletes old files that no turn uses.
    Statement(
        """
        SELECT id, CAST(:name AS text), digest, media_type, content, now(), file_name, purpose
        FROM uploads WHERE owner = :owner AND id = ANY(CAST(:key AS uuid[]))
        """,
        timeout=_TIMEOUT,
    ),
    Statement("DELETE FROM uploads WHERE owner = :name AND id = ANY(CAST(:key AS uuid[]))", timeout=_TIMEOUT),
    Statement(
        """
        WITH taken AS (
            UPDATE uploads SET owner = :owner, media_type = live.media_type, created_at = live.created_at,
                file_name = live.file_name, purpose = live.purpose
            FROM unnest(
                CAST(:key AS uuid[]), CAST(:media_type AS text[]), CAST(:created_at AS timestamptz[]),
                CAST(:file_name AS text[]), CAST(:purpose AS text[])
            ) AS live (id, media_type, created_at, file_name, purpose)
            WHERE owner = :name AND uploads.id = live.id RETURNING uploads.id
        )
        SELECT count(*) AS number FROM taken
        """,
        timeout=_TIMEOUT,
    ),
    live=("media_type", "created_at", "file_name", "purpose"),
)
_DOCUMENTS: Final = _Copied(
    ("owner", "path", "content", "updated_at", "searchable"),
    Statement(
        "SELECT path AS key, updated_at AS version, octet_length(content) AS size FROM documents WHERE owner = :owner",
        timeout=_TIMEOUT,
    ),
    Statement(
        """
        SELECT CAST(:name AS text), path, content, updated_at, searchable
        FROM documents WHERE owner = :owner AND path = ANY(CAST(:key AS text[]))
        """,
        timeout=_TIMEOUT,
    ),
    Statement("DELETE FROM documents WHERE owner = :name AND path = ANY(CAST(:key AS text[]))", timeout=_TIMEOUT),
    Statement(
        """
        WITH taken AS (
            UPDATE documents SET owner = :owner FROM unnest(CAST(:key AS text[])) AS live (path)
            WHERE owner = :name AND documents.path = live.path RETURNING documents.path
        )
        SELECT count(*) AS number FROM taken
        """,
        timeout=_TIMEOUT,
    ),
)
# The digest is the digest of the content, so equal keys mean equal content.
_TOOL_SETS: Final = _Copied(
    ("owner", "digest", "tools", "used_at"),
    Statement(
        """
        SELECT digest AS key, true AS version, used_at, octet_length(tools::text) AS size
        FROM tool_sets WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    # The tool set gets the age of a set that is in use, because a sweep deletes old sets that no turn uses.
    Statement(
        """
        SELECT CAST(:name AS text), digest, tools, now()
        FROM tool_sets WHERE owner = :owner AND digest = ANY(CAST(:key AS bytea[]))
        """,
        timeout=_TIMEOUT,
    ),
    Statement("DELETE FROM tool_sets WHERE owner = :name AND digest = ANY(CAST(:key AS bytea[]))", timeout=_TIMEOUT),
    Statement(
        """
        WITH taken AS (
            UPDATE tool_sets SET owner = :owner, used_at = live.used_at
            FROM unnest(CAST(:key AS bytea[]), CAST(:used_at AS timestamptz[])) AS live (digest, used_at)
            WHERE owner = :name AND tool_sets.digest = live.digest RETURNING tool_sets.digest
        )
        SELECT count(*) AS number FROM taken
        """,
        timeout=_TIMEOUT,
    ),
    live=("used_at",),
)
# A table comes after the tables that its rows refer to.
COPIED: Final[Mapping[str, _Copied]] = {
    "chats": _CHATS,
    "turns": _TURNS,
    "tool_sets": _TOOL_SETS,
    "uploads": _UPLOADS,
    "documents": _DOCUMENTS,
}
# Tables that are copied here, so no other step of a move copies them.
AHEAD: Final = frozenset({*COPIED, *_TURNS.parts})

LOCK = Statement("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0)) AS alone")
# Deletes rows that triggers insert for copied chats and turns, as they do for every owner.
DELETE_TRACES = tuple(
    Statement(f"DELETE FROM {table} WHERE owner = :name", timeout=_TIMEOUT)
    for table in ("search_pending", "deleted_chats")
)


class OwnerAhead:
    """Copies an owner's rows ahead. `step` is called before each portion."""

    def __init__(self, owner: str, step: Callable[[str], None]) -> None:
        self._owner = owner
        self._name = arriving_name(owner)
        self._step = step

    async def copy_ahead(self, source: Database, target: Database) -> None:
        """Copies the owner's rows to the new cell, but skips rows that an interrupted move has already copied. Raises
        ConfigError if another command copies the same owner.
        """
        for _ in range(_PASSES):
            # Turns are listed before chats, so that the list of chats has the chat of every listed turn.
            listed = {name: await source.rows(COPIED[name].list, owner=self._owner) for name in reversed([*COPIED])}
            listed["turns"] = _parents_first(listed["turns"])
            copied = False
            for name, table in COPIED.items():
                async with target.transaction() as there:
                    await self._lock(there)
                    missing = await self._missing(table, listed[name], there)
                for keys in _portions(missing):
                    copied = True
                    self._step("ahead")
                    # One snapshot is used for the portion, so that each turn has all its blocks.
                    async with source.transaction(snapshot=True) as here, target.transaction() as there:
                        await self._lock(there)
                        await self._copy(name, here, there, self._owner, keys, held=False)
            if not copied:
                break

    async def forget(self, target: Database) -> None:
        """Deletes all copied rows in the new cell."""
        async with target.transaction() as there:
            await self._lock(there)
            for table in COPIED.values():
                copied = await self._versions(table, there)
                await there.rows(table.delete, name=self._name, key=[*copied])

    async def take_over(self, source: Transaction, target: Transaction, owner: str) -> None:
        """Copies the remaining rows of `owner` from the old cell, where no row changes any more, and assigns all copies
        to the owner. Raises ConfigError if copies were deleted in the new cell during the move.
        """
        await self._lock(target)
        listed = {name: await source.rows(table.list, owner=owner) for name, table in COPIED.items()}
        for name, table in COPIED.items():
            missing = await self._missing(table, listed[name], target)
            await self._copy(name, source, target, owner, [row["key"] for row in missing], held=True)
            if table.renew is not None:
                await self._renew(table, table.renew, listed[name], source, target)
        for name, table in COPIED.items():
            live = {column: [row[column] for row in listed[name]] for column in ("key", *table.live)}
            taken = await target.row(table.take, owner=self._owner, name=self._name, **live)
            if taken is None or taken["number"] != len(listed[name]):
                raise ConfigError(f"{name} of {self._name!r} were deleted in the new cell during the move. Try again.")

    async def _renew(
        self, table: _Copied, renewal: _Renewal, rows: Sequence[Row], source: Transaction, target: Transaction
    ) -> None:
        """Copies long columns again, but only for rows that have changed since they were copied: the owner waits
        meanwhile.
        """
        copied = {row["key"]: row["updated_at"] for row in await target.rows(table.list, owner=self._name)}
        for keys in _portions([row for row in rows if copied.get(row["key"]) != row["updated_at"]]):
            new = await source.rows(renewal.read, key=keys)
            columns = {name: [row[name] for row in new] for name in ("key", *renewal.columns)}
            await target.rows(renewal.write, name=self._name, **columns)

    async def _lock(self, target: Transaction) -> None:
        row = await target.row(LOCK, name=self._name)
        if row is None or not row["alone"]:
            raise ConfigError(f"Another command is moving {self._owner} to the same cell.")

    async def _missing(self, table: _Copied, rows: Sequence[Row], target: Transaction) -> Sequence[Row]:
        """Returns the rows that have no copy. Before that, deletes copies whose rows have changed or were deleted."""
        versions = {row["key"]: row["version"] for row in rows}
        copied = await self._versions(table, target)
        changed = [key for key, version in copied.items() if version is None or versions.get(key) != version]
        if changed:
            await target.rows(table.delete, name=self._name, key=changed)
            copied = await self._versions(table, target)  # the descendants of a deleted turn are deleted, too
        return [row for row in rows if row["key"] not in copied]

    async def _versions(self, table: _Copied, target: Transaction) -> Mapping[Any, Any]:
        return {row["key"]: row["version"] for row in await target.rows(table.list, owner=self._name)}

    async def _copy(
        self, name: str, source: Transaction, target: Transaction, owner: str, keys: Collection[Any], *, held: bool
    ) -> None:
        """Copies rows with their parts. An open turn is copied only while its owner is `held`: otherwise a replica in
        the new cell could claim the turn too early.
        """
        table = COPIED[name]
        values = {"owner": owner, "name": self._name, "key": keys, "held": held}
        await copy_rows(source, target, name, table.columns, table.copy, **values)
        for part, copy in table.parts.items():
            await copy_rows(source, target, part, stored_columns(part), copy, key=keys)
        for delete in DELETE_TRACES:
            await target.rows(delete, name=self._name)


def _parents_first(turns: Sequence[Row]) -> Sequence[Row]:
    """Returns the turns that no longer change and whose ancestors no longer change. Parents come first, and the turns
    of a chat are together.
    """
    children = defaultdict(list)
    for turn in turns:
        children[turn["parent_id"]].append(turn)
    found, open_ends = [], children[None]
    while open_ends:
        turn = open_ends.pop()
        if turn["version"] is not None:
            found.append(turn)
            open_ends += children[turn["key"]]
    return found


def _portions(rows: Sequence[Row]) -> Iterator[Sequence[Any]]:
    """Yields groups of keys, whose rows are copied in one transaction each."""
    keys, size = [], 0
    for row in rows:
        keys.append(row["key"])
        size += row["size"]
        if size >= _PORTION:
            yield keys
            keys, size = [], 0
    if keys:
        yield keys

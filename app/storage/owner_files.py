"""Files and documents of an owner who moves: they are copied ahead, while the owner still works.

In the new cell they belong to an owner of another name, so that no request finds them. Once the owner is held, what has
changed since is copied, and all get the owner's name: that takes as long as there are rows, not bytes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.storage.database import Database, Row, Statement, Transaction

_TIMEOUT: Final = 1800.0  # seconds, as those of the whole copy
_PORTION: Final = 32_000_000  # bytes that are copied in one transaction, or little more
_PASSES: Final = 5  # at most, where the owner goes on changing them


@dataclass(frozen=True, slots=True)
class _Large:
    """A table of which rows with the same key and version have the same content. `copy` gives those of :owner as those
    of :name; `take` makes those of :name the owner's, and gives them what else may have changed, the `live` columns.
    """

    columns: Sequence[str]
    live: Sequence[str]
    list: Statement
    copy: Statement
    delete: Statement
    take: Statement


_UPLOADS: Final = _Large(
    ("id", "owner", "digest", "media_type", "content", "created_at"),
    ("media_type", "created_at"),
    Statement(
        """
        SELECT id AS key, digest AS version, octet_length(content) AS size, media_type, created_at
        FROM uploads WHERE owner = :owner
        """,
        timeout=_TIMEOUT,
    ),
    # As a new file: a sweep deletes old ones to which no turn refers.
    Statement(
        """
        SELECT id, CAST(:name AS text), digest, media_type, content, now()
        FROM uploads WHERE owner = :owner AND id = ANY(CAST(:key AS uuid[]))
        """,
        timeout=_TIMEOUT,
    ),
    Statement("DELETE FROM uploads WHERE owner = :name AND id = ANY(CAST(:key AS uuid[]))", timeout=_TIMEOUT),
    Statement(
        """
        UPDATE uploads SET owner = :owner, media_type = live.media_type, created_at = live.created_at
        FROM unnest(CAST(:key AS uuid[]), CAST(:media_type AS text[]), CAST(:created_at AS timestamptz[]))
            AS live (id, media_type, created_at)
        WHERE owner = :name AND uploads.id = live.id RETURNING uploads.id
        """,
        timeout=_TIMEOUT,
    ),
)
_DOCUMENTS: Final = _Large(
    ("owner", "path", "content", "updated_at", "searchable"),
    (),
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
        UPDATE documents SET owner = :owner FROM unnest(CAST(:key AS text[])) AS live (path)
        WHERE owner = :name AND documents.path = live.path RETURNING documents.path
        """,
        timeout=_TIMEOUT,
    ),
)
LARGE: Final[Mapping[str, _Large]] = {"uploads": _UPLOADS, "documents": _DOCUMENTS}


class OwnerFiles:
    """`step` is called before each portion that is copied ahead."""

    def __init__(self, owner: str, step: Callable[[str], None]) -> None:
        self._owner = owner
        self._step = step

    async def copy_ahead(self, source: Database, target: Database) -> None:
        """What is there already, from a move that was cut off, is not copied again."""
        for name, table in LARGE.items():
            for _ in range(_PASSES):
                async with source.transaction() as here, target.transaction() as there:
                    missing = await self._missing(table, await here.rows(table.list, owner=self._owner), there)
                if not missing:
                    break
                for keys in _portions(missing):
                    self._step("files")
                    async with source.transaction() as here, target.transaction() as there:
                        await self._copy(name, here, there, self._owner, keys)

    async def take_over(self, name: str, source: Transaction, target: Transaction, owner: str) -> int:
        """Gives the owner all rows of the table that `owner` has in the old cell; how many they are."""
        table = LARGE[name]
        rows = await source.rows(table.list, owner=owner)
        missing = await self._missing(table, rows, target)
        await self._copy(name, source, target, owner, [row["key"] for row in missing])
        live = {column: [row[column] for row in rows] for column in ("key", *table.live)}
        return len(await target.rows(table.take, owner=self._owner, name=arriving_name(self._owner), **live))

    async def _missing(self, table: _Large, rows: Sequence[Row], target: Transaction) -> Sequence[Row]:
        """Those of the rows that have not been copied. What was copied and has changed since is deleted."""
        name, versions = arriving_name(self._owner), {row["key"]: row["version"] for row in rows}
        copied = {row["key"]: row["version"] for row in await target.rows(table.list, owner=name)}
        changed = [key for key, version in copied.items() if versions.get(key) != version]
        await target.rows(table.delete, name=name, key=changed)
        return [row for row in rows if copied.get(row["key"]) != row["version"]]

    async def _copy(
        self, name: str, source: Transaction, target: Transaction, owner: str, keys: Collection[Any]
    ) -> None:
        table = LARGE[name]
        values = {"owner": owner, "name": arriving_name(self._owner), "key": keys}
        await source.copy_to(target, name, table.columns, table.copy, **values)


def arriving_name(owner: str) -> str:
    """The owner of what is copied ahead, in the new cell."""
    return f"{owner} (arriving)"


def _portions(rows: Sequence[Row]) -> Iterator[Sequence[Any]]:
    """Keys of rows that are copied together."""
    keys, size = [], 0
    for row in rows:
        keys.append(row["key"])
        size += row["size"]
        if size >= _PORTION:
            yield keys
            keys, size = [], 0
    if keys:
        yield keys

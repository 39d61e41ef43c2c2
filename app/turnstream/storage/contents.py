"""The contents of rows that an extension may encrypt at rest. Each statement names its contents. The extension's codec
seals values before they are stored, and opens values that are read; without a codec values pass unchanged.

A table may have both sealed and plain rows; a mark in the value distinguishes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

# The beginning of a sealed text. After the mark come the number of characters of the plain text, a colon and the
# ciphertext. A sealed JSON value is an object whose member `sealed` is such a text.
TEXT_MARK: Final = "turnstream-text:1:"
JSON_MARK: Final = f'{{"sealed":"{TEXT_MARK}'
# The beginning of sealed bytes. Sealed bytes, including this mark, are longer than the plain bytes by `BYTES_ADDED`.
BYTES_MARK: Final = b"\0turnstream-bytes:1:"
BYTES_ADDED: Final = len(BYTES_MARK) + 17


def text_size(text: str) -> str:
    """Returns an SQL expression for the number of characters of a text before it was sealed."""
    return f"coalesce(substring(left({text}, 40) from '^{TEXT_MARK}([0-9]{{1,9}}):')::integer, length({text}))"


# SQL expressions for a column `content`: its plain size in bytes, and its plain number of characters.
BYTES_SIZE: Final = f"""length(content) - CASE WHEN
    substr(content, 1, {len(BYTES_MARK)}) = '\\x{BYTES_MARK.hex()}'::bytea THEN {BYTES_ADDED} ELSE 0 END"""
TEXT_SIZE: Final = text_size("content")
IS_SEALED: Final = f"starts_with(text, '{TEXT_MARK}')"


def is_sealed(text: str) -> str:
    return f"coalesce(starts_with({text}, '{TEXT_MARK}') OR starts_with({text}, '{JSON_MARK}'), false)"


def beginning_of(text: str, most: str) -> str:
    """Returns an SQL expression for the first characters of a text. A sealed text stays whole until it is opened."""
    return f"left({text}, CASE WHEN {is_sealed(text)} THEN 2147483647 ELSE {most} END)"


Kind = Literal["text", "json", "labelled", "members", "rows", "bytes", "digest"]


@dataclass(frozen=True, slots=True)
class SealedColumns:
    """Columns of a table that may be sealed, with their kinds. A sealed value can be opened only in the row with the
    same `key`. `names` maps columns to their parameters or result columns, if the names differ; such a parameter may be
    a list with a value for each row. A `digest` is the digest of plain contents; for sealed contents it depends on a
    secret key. A `labelled` value is JSON, whose sealed form shows the ids of uploads and of a steer. `members` is JSON
    that SQL reads, of which only some members are sealed. `rows` are rows of other tables in a column of a turn's row.
    """

    table: str
    key: tuple[str, ...]
    columns: Mapping[str, Kind]
    names: Mapping[str, str] = field(default_factory=dict)

    def named(self, **names: str) -> "SealedColumns":
        return replace(self, names={**self.names, **names})

    def name(self, column: str) -> str:
        return self.names.get(column, column)


UPLOADS: Final = SealedColumns("uploads", ("digest",), {"digest": "digest", "content": "bytes", "file_name": "text"})
DOCUMENTS: Final = SealedColumns("documents", ("path",), {"content": "text"})
BLOCKS: Final = SealedColumns(
    "blocks",
    ("turn_id", "index"),
    {"text": "text", "data": "labelled", "notes": "labelled", "whole": "text", "client_data": "json"},
)
OPEN_TEXT: Final = SealedColumns("open_text", ("turn_id", "attempt", "index", "start"), {"text": "text"})
CHATS: Final = SealedColumns("chats", ("id",), {"title": "text", "system_prompt": "text"})
REQUESTS: Final = SealedColumns("turns", ("id",), {"request": "members"})
TURNS: Final = SealedColumns("turns", ("id",), {"request": "members", "preliminary": "rows", "jobs": "rows"})
STEERS: Final = SealedColumns("steers", ("turn_id", "id"), {"blocks": "json"})
ASKS: Final = SealedColumns("asks", ("turn_id", "round", "tool_use_id"), {"answer": "members", "question": "json"})
CALLS: Final = SealedColumns("tool_calls", ("turn_id",), {"preliminary": "members"})
JOBS: Final = SealedColumns(
    "jobs", ("turn_id",), {"input": "text", "checkpoint": "json", "progress": "text", "outcome": "members"}
)
SCHEDULES: Final = SealedColumns("schedules", ("id",), {"request": "members"})
# The columns of blocks, with the names of the parameters that insert blocks (`columns_of`).
NEW_BLOCKS: Final = BLOCKS.named(
    turn_id="turn", index="indexes", text="texts", data="datas", whole="wholes", client_data="client_datas"
)


class Codec(Protocol):
    """Seals and opens contents. Raises Conflict if a key is lost, or if a value was changed or moved. `seals`: the
    codec seals new rows. `forms` names the formats that this replica can read, so that other replicas know them.
    """

    seals: bool
    forms: Sequence[str]

    async def seal(self, contents: SealedColumns, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters of a statement, in which the values to store are sealed."""
        ...

    async def open(self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """Returns the rows of a statement with opened values. `values` are the parameters before they were sealed."""
        ...

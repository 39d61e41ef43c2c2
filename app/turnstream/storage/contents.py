"""Contents of rows with optional encryption at rest. Statements name these contents. The codec of an extension seals
and opens values at the border of storage; without a codec all values pass unchanged.

A table may have sealed and plain rows, distinguished by a mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

# The beginning of a sealed text. The number of characters of the plain text and a colon follow. A sealed JSON value is
# an object with such a text as its member `sealed`.
TEXT_MARK: Final = "turnstream-text:1:"
JSON_MARK: Final = f'{{"sealed":"{TEXT_MARK}'
# The beginning of sealed bytes. With this mark, sealed bytes are longer than plain bytes by `BYTES_ADDED`.
BYTES_MARK: Final = b"\0turnstream-bytes:1:"
BYTES_ADDED: Final = len(BYTES_MARK) + 17


def text_size(text: str) -> str:
    """An SQL expression for the number of characters of a text."""
    return f"coalesce(substring(left({text}, 40) from '^{TEXT_MARK}([0-9]{{1,9}}):')::integer, length({text}))"


# SQL expressions for columns `content`: the size in bytes, and the number of characters.
BYTES_SIZE: Final = f"""length(content) - CASE WHEN
    substr(content, 1, {len(BYTES_MARK)}) = '\\x{BYTES_MARK.hex()}'::bytea THEN {BYTES_ADDED} ELSE 0 END"""
TEXT_SIZE: Final = text_size("content")
IS_SEALED: Final = f"starts_with(text, '{TEXT_MARK}')"


def is_sealed(text: str) -> str:
    return f"coalesce(starts_with({text}, '{TEXT_MARK}') OR starts_with({text}, '{JSON_MARK}'), false)"


def beginning_of(text: str, most: str) -> str:
    """An SQL expression for the first characters of a text. A sealed text stays whole, and is cut after its opening."""
    return f"left({text}, CASE WHEN {is_sealed(text)} THEN 2147483647 ELSE {most} END)"


Kind = Literal["text", "json", "labelled", "members", "rows", "bytes", "digest"]


@dataclass(frozen=True, slots=True)
class SealedColumns:
    """Columns of a table by their kind. A sealed value opens only in the row with this `key`. A `digest` is of plain
    contents, and uses a secret key for sealed contents. `names` has the names of parameters, or of result columns, that
    differ from the column; such a parameter may be a list with a value for each row. A `labelled` value is JSON with
    readable ids of uploads and of a steer. SQL reads the JSON of `members`, and some of its members are sealed. `rows`
    are rows of other tables in a column of a turn's row.
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
# The columns as parameters of a statement (`columns_of`).
NEW_BLOCKS: Final = BLOCKS.named(
    turn_id="turn", index="indexes", text="texts", data="datas", whole="wholes", client_data="client_datas"
)


class Codec(Protocol):
    """Raises CannotOpen if a key is lost, or a value was changed or moved. `seals`: the codec seals new rows. `forms`
    names the supported formats, for other replicas.
    """

    seals: bool
    forms: Sequence[str]

    async def seal(self, contents: SealedColumns, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a statement for storage."""
        ...

    async def open(self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """The opened rows of a statement with these unsealed parameters."""
        ...

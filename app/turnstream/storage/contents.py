"""Contents of rows that may be encrypted at rest. Statements name them, and the codec of an extension seals and opens
them at the border of storage; without a codec all values pass as they are.

Sealed and plain rows are beside each other: a mark tells them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

# The beginning of a sealed text; the number of the plain one's characters and a colon follow. A sealed JSON value is an
# object with such a text as its member `sealed`.
TEXT_MARK: Final = "turnstream-text:1:"
JSON_MARK: Final = f'{{"sealed":"{TEXT_MARK}'
# The beginning of sealed bytes, which are longer than the plain ones by `BYTES_ADDED` with it.
BYTES_MARK: Final = b"\0turnstream-bytes:1:"
BYTES_ADDED: Final = len(BYTES_MARK) + 17


def text_size(text: str) -> str:
    """An expression of the number of characters of a text."""
    return f"coalesce(substring(left({text}, 40) from '^{TEXT_MARK}([0-9]{{1,9}}):')::integer, length({text}))"


# Expressions of columns `content`: the size in bytes, and the number of characters.
BYTES_SIZE: Final = f"""length(content) - CASE WHEN
    substr(content, 1, {len(BYTES_MARK)}) = '\\x{BYTES_MARK.hex()}'::bytea THEN {BYTES_ADDED} ELSE 0 END"""
TEXT_SIZE: Final = text_size("content")
IS_SEALED: Final = f"starts_with(text, '{TEXT_MARK}')"


def is_sealed(text: str) -> str:
    return f"coalesce(starts_with({text}, '{TEXT_MARK}') OR starts_with({text}, '{JSON_MARK}'), false)"


def beginning_of(text: str, most: str) -> str:
    """An expression of the first characters of a text; a sealed one is whole, and cut when it is open."""
    return f"left({text}, CASE WHEN {is_sealed(text)} THEN 2147483647 ELSE {most} END)"


Kind = Literal["text", "json", "labelled", "members", "rows", "bytes", "digest"]


@dataclass(frozen=True, slots=True)
class SealedColumns:
    """Columns of a table by their kind. A sealed value opens in the row with this `key` alone. A digest is one of plain
    contents: of sealed ones it has a key. `names` are those of parameters, or of columns of a result, that have another
    name than their column; such a parameter may be a list, of one value for each row. A `labelled` value is JSON of
    which ids of uploads and of a steer stay readable. Of `members`, JSON that SQL reads, some are sealed; `rows` are
    those of other tables that a turn's row has with it.
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
# As the parameters of a statement (`columns_of`).
NEW_BLOCKS: Final = BLOCKS.named(
    turn_id="turn", index="indexes", text="texts", data="datas", whole="wholes", client_data="client_datas"
)


class Codec(Protocol):
    """Raises CannotOpen if a key is lost, or a value was changed or moved. `seals`: new rows are to be sealed. `forms`
    names what it can open, for other replicas.
    """

    seals: bool
    forms: Sequence[str]

    async def seal(self, contents: SealedColumns, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a statement as they are stored."""
        ...

    async def open(self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """The rows of a statement with these parameters as they were before."""
        ...

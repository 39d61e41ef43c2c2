"""Ownership: by which path the rows of a table belong to an owner, and what becomes of them. Each table has one value
(tables.py); policies of row-level security, moves, archives and erasure follow from it.
"""

from dataclasses import dataclass
from typing import Literal

# The column that names the owner, or the chat or turn whose owner it is.
Path = Literal["owner", "chat_id", "turn_id"]
# The kinds of rows: `content` is moved and archived. `state` is moved. `local` is neither: it is made from other rows,
# or of use in this database alone. A `credential` is copied by a move, and stays. A `trail` outlasts its owner.
Nature = Literal["content", "state", "local", "credential", "trail"]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Rows without a `path` have no owner. The role of the API does not reach a `closed` table."""

    path: Path | None
    nature: Nature
    closed: bool


def owned(path: Path | None, nature: Nature = "local", *, closed: bool = False) -> Ownership:
    return Ownership(path, nature, closed)

"""Ownership: the path from the rows of a table to their owner, and the use of these rows. Each table has one value
(tables.py); policies of row-level security, moves, archives and erasure depend on this value.
"""

from dataclasses import dataclass
from typing import Literal

# The column with the owner, or with the chat or turn of the owner.
Path = Literal["owner", "chat_id", "turn_id"]
# The kinds of rows. Moves and archives include `content`. Moves include `state`. Neither includes `local`: such rows
# come from other rows, or are useful only in this database. A move copies a `credential`, and leaves the original. A
# `trail` outlasts its owner.
Nature = Literal["content", "state", "local", "credential", "trail"]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Rows without a `path` have no owner. The role of the API has no access to a `closed` table."""

    path: Path | None
    nature: Nature
    closed: bool


def owned(path: Path | None, nature: Nature = "local", *, closed: bool = False) -> Ownership:
    return Ownership(path, nature, closed)

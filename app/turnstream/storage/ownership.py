"""Ownership: how the rows of a table lead to their owner, and which features include the rows. Each table has one
`Ownership` (tables.py), on which policies of row-level security, moves, archives and erasures depend.
"""

from dataclasses import dataclass
from typing import Literal

# The column that contains the owner, or the id of the owner's chat or turn.
Path = Literal["owner", "chat_id", "turn_id"]
# The kinds of rows. Moves and archives include `content`. Only moves include `state`. Neither moves nor archives
# include `local` rows, which are derived from other rows or useful only in this database. A move copies a `credential`,
# and keeps the original row. A `trail` outlasts its owner.
Nature = Literal["content", "state", "local", "credential", "trail"]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Without a `path` the rows have no owner. The API's role has no access to a `closed` table."""

    path: Path | None
    nature: Nature
    closed: bool


def owned(path: Path | None, nature: Nature = "local", *, closed: bool = False) -> Ownership:
    return Ownership(path, nature, closed)

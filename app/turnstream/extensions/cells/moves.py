"""Reads which owners move to or from another cell, for the servers of a cell. The move itself is in owner_move.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turnstream.storage.database import Database, Statement

MoveState = Literal["leaving", "gone", "arrived"]

# Seconds that a replica waits between two reads of the moves.
LOOK = 1.0

GET_MOVES = Statement("SELECT owner, cell, state, held_until > now() AS held FROM moves")


@dataclass(frozen=True, slots=True)
class Move:
    """A cell's record of an owner's move. `cell` is the other cell. While `held`, no row of the owner may change."""

    cell: str
    state: MoveState
    held: bool


class Moves:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Mapping[str, Move]:
        """Returns the moves by owner."""
        rows = await self._database.rows(GET_MOVES)
        return {row["owner"]: Move(row["cell"], row["state"], bool(row["held"])) for row in rows}

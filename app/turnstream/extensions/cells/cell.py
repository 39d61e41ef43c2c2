"""Refuses calls of owners who belong to another cell, and changes by an owner who is being moved."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from turnstream.api.http.errors import Unavailable
from turnstream.domain.errors import OfAnotherCell
from turnstream.domain.identity import Identity
from turnstream.extensions.cells.moves import LOOK, Move, Moves


class Cell:
    """This server as one of several cells. Refuses calls for owners of other cells, and reads the moves of owners
    repeatedly. `release` returns the running turns of the given owners to the queue.
    """

    def __init__(self, name: str, moves: Moves, release: Callable[[Collection[str]], None]) -> None:
        self._name = name
        self._table = moves
        self._release = release
        self._moves: Mapping[str, Move] = {}

    def admit(self, identity: Identity, changes: bool) -> None:
        """Raises OfAnotherCell for an owner of another cell. Raises Unavailable for a call that `changes` data while
        its owner is moved.
        """
        move = self._moves.get(identity.owner)
        if move is None:
            if identity.cell not in {None, self._name}:
                raise OfAnotherCell(str(identity.cell), self._name)
        elif move.state == "gone":
            raise OfAnotherCell(move.cell, self._name)
        elif move.held and changes:
            raise Unavailable(
                f"A move of the owner to the cell {move.cell} is in progress; nothing was stored. Try again."
            )

    async def follow(self) -> None:
        """Reads the moves repeatedly, until this task is cancelled. Raises StorageError."""
        while True:
            self._moves = await self._table.all()
            if held := [owner for owner, move in self._moves.items() if move.held]:
                self._release(held)
            await asyncio.sleep(LOOK)

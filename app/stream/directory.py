"""Where the views are: the turns that run here are in memory, every other one is made from its rows."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from app.domain.turns import Turn
from app.stream.doorbell import Doorbell
from app.stream.live import LiveView

# How often a reader looks at the rows of a turn that runs elsewhere or nowhere, in seconds. A lost ring costs no more.
LOOK_AGAIN = 0.5


class Directory:
    def __init__(self) -> None:
        self._running: dict[UUID, LiveView] = {}
        self._owners: dict[UUID, str] = {}
        self._awaited: dict[UUID, Doorbell] = {}

    def running(self, turn: UUID) -> LiveView | None:
        return self._running.get(turn)

    def running_for(self, owner: str, chat: UUID, turn: UUID) -> LiveView | None:
        """The live view of a turn that runs here, for the owner of its chat."""
        view = self._running.get(turn)
        return view if view and view.turn.chat_id == chat and self._owners[turn] == owner else None

    def view(self, turn: Turn) -> LiveView:
        """The live view where the turn runs here, else one made from `turn`."""
        return self._running.get(turn.id) or LiveView(turn)

    @contextmanager
    def host(self, turn: Turn, owner: str) -> Iterator[LiveView]:
        """Keeps a live view of a claimed turn while this replica writes it."""
        view = LiveView(turn)
        self._running[turn.id] = view
        self._owners[turn.id] = owner
        if bell := self._awaited.get(turn.id):
            bell.ring()
        try:
            yield view
        finally:
            if self._running.get(turn.id) is view:
                del self._running[turn.id], self._owners[turn.id]
            view.doorbell.ring()

    async def moved(self, view: LiveView) -> None:
        """Returns when the turn of `view`, which is not written here, may have moved on."""
        turn = view.turn.id
        if turn in self._running:
            return
        bell = self._awaited.setdefault(turn, Doorbell())
        try:
            async with asyncio.timeout(LOOK_AGAIN):
                await bell.wait()
        except TimeoutError:
            pass
        finally:
            if not bell.awaited and self._awaited.get(turn) is bell:
                del self._awaited[turn]

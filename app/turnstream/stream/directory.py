"""The directory of live views, for turns that run on this replica, run on another replica, or have ended."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID
from weakref import WeakValueDictionary

from turnstream.domain.turns import Turn
from turnstream.stream.live import LiveView
from turnstream.stream.wakeup import Wakeup


class Directory:
    def __init__(self) -> None:
        self._here: dict[UUID, LiveView] = {}
        self._owners: dict[UUID, str] = {}
        # Weak: a mirrored view lives as long as its readers.
        self._mirrored: WeakValueDictionary[UUID, LiveView] = WeakValueDictionary()
        self.mirroring = Wakeup()  # `mirrored` has a new view

    def here(self) -> Sequence[LiveView]:
        """Returns the views of all turns that run on this replica."""
        return list(self._here.values())

    def running(self, turn: UUID) -> LiveView | None:
        """Returns the view of the turn, if the turn runs on this replica."""
        return self._here.get(turn)

    def running_for(self, owner: str, chat: UUID, turn: UUID) -> LiveView | None:
        """Returns the view of the turn, if the turn runs on this replica and its chat belongs to the owner."""
        view = self._here.get(turn)
        return view if view and view.turn.chat_id == chat and self._owners[turn] == owner else None

    def mirrored(self) -> Sequence[LiveView]:
        """Returns the views that have readers on this replica and a writer on another replica."""
        return [view for view in self._mirrored.values() if not view.ended]

    def view(self, turn: Turn) -> LiveView:
        """Returns the view of a turn, which is never older than `turn`. If there is no view, a view is made from
        `turn`. A view whose writer is here is ignored if it lacks the attempt of `turn`, because its run has lost the
        claim. A mirror that has less content than `turn` copies the rows.
        """
        here = self._here.get(turn.id)
        if here and here.has_had(turn.attempt):
            return here
        view = self._mirrored.get(turn.id)
        if view is None:
            view = LiveView(turn)
        elif view.is_behind(turn):
            view.adopt(turn, None)
        else:
            return view
        if not turn.ended:
            self._mirrored[turn.id], view.provisional = view, True
            self.mirroring.notify()
        return view

    def is_fed(self, view: LiveView) -> bool:
        """Returns whether `view` has a writer that notifies its readers."""
        turn = view.turn.id
        return self._here.get(turn) is view or self._mirrored.get(turn) is view

    @contextmanager
    def host(self, view: LiveView, owner: str) -> Iterator[None]:
        """Registers the view of a turn while this replica writes the turn. Readers of its mirror switch to the view."""
        turn = view.turn.id
        self._here[turn], self._owners[turn] = view, owner
        if mirrored := self._mirrored.pop(turn, None):
            mirrored.wakeup.notify()
        try:
            yield
        finally:
            if self._here.get(turn) is view:
                del self._here[turn], self._owners[turn]
            view.wakeup.notify()

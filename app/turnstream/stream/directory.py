"""The directory of live views: of turns that run here, run elsewhere, or have ended."""

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
        """The views of all turns that run here."""
        return list(self._here.values())

    def running(self, turn: UUID) -> LiveView | None:
        """The view of a turn that runs here."""
        return self._here.get(turn)

    def running_for(self, owner: str, chat: UUID, turn: UUID) -> LiveView | None:
        """The view of a turn that runs here, if the turn's chat belongs to the owner."""
        view = self._here.get(turn)
        return view if view and view.turn.chat_id == chat and self._owners[turn] == owner else None

    def mirrored(self) -> Sequence[LiveView]:
        """The views with readers here and a writer elsewhere."""
        return [view for view in self._mirrored.values() if not view.ended]

    def view(self, turn: Turn) -> LiveView:
        """The view of a turn, made from `turn` if there is none, and never older than `turn`. A view with an older
        attempt and a writer here has lost its claim. A mirror with less content is late, and copies the rows.
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
        """Whether `view` has a writer that notifies its readers."""
        turn = view.turn.id
        return self._here.get(turn) is view or self._mirrored.get(turn) is view

    @contextmanager
    def host(self, view: LiveView, owner: str) -> Iterator[None]:
        """Registers the view of a claimed turn while this replica writes it. Readers of its mirror switch to it."""
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

"""The reader of a turn: sends the present events, then waits for more. Live and ended turns are read alike."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from turnstream.domain.cursor import Cursor
from turnstream.domain.errors import NotFound
from turnstream.domain.events import CAUGHT_UP, Event, Notice, preliminary_notice, progress_notice
from turnstream.domain.log import elicited, next_event, resume
from turnstream.domain.turns import Turn
from turnstream.storage.database import retry_while_unavailable
from turnstream.stream.directory import Directory
from turnstream.stream.live import Frame, LiveView

# Frames are yielded in portions of about this many bytes: small frames are joined, and memory is limited.
PORTION = 65_536

Encode = Callable[[Event | Notice, Cursor | None], bytes]
Load = Callable[[], Awaitable[Turn]]


class TurnReader:
    """Reads one turn for one client, from `cursor` on.

    `view` comes from `directory.view`; `load` reads the turn's rows again. Readers that share frames (`shares`) must
    all have the same encoder. With `caught_up`, a notice follows the stored events, unless the turn has ended.
    """

    def __init__(
        self,
        directory: Directory,
        view: LiveView,
        load: Load,
        cursor: Cursor,
        encode: Encode,
        *,
        shares: bool = False,
        caught_up: bool = False,
    ) -> None:
        self.view = view
        self.done = False
        self._directory = directory
        self._load = load
        self._cursor = cursor
        self._encode = encode
        self.shares = shares
        self._marks_end = caught_up
        self._unjoined = 0
        self._seen = view.notice_number
        self._resumed = False  # whether `cursor` belongs to `view`
        self._knows_running = False  # whether the client has the running tools' earlier outputs and questions

    @property
    def fed(self) -> bool:
        """Whether the view has a writer, which notifies when there are more events."""
        return self._directory.is_fed(self.view)

    @property
    def is_current(self) -> bool:
        """Whether the client has the whole content of the view. The check costs less than an empty `look`."""
        view, cursor = self.view, self._cursor
        return (
            self._knows_running
            and cursor.offset == view.open_length
            and cursor.place == len(view.marks)
            and cursor.attempt == view.turn.attempt
            and self._seen == view.notice_number
            and not view.ended
        )

    @contextmanager
    def unjoined(self) -> Iterator[None]:
        """Exempts the turn's deltas from ticks of the frame clock in the `with` block, if the turn runs here."""
        self._unjoined = 1
        self.view.unjoined += 1
        try:
            yield
        finally:
            self.view.unjoined -= 1
            self._unjoined = 0

    async def frames(self, first: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Yields the frame `first`, then all later frames, until the turn has ended."""
        if first:
            yield first
            first = b""  # frees the memory before the stream continues
        while not self.done:
            if not self.is_current and (frames := self.look()):
                yield frames
            elif not self.done:
                await self.wait()

    def advance_to(self, other: "TurnReader") -> None:
        """Copies the position of `other`, which reads the same view and had the same cursor before its last frames."""
        self._cursor, self._seen = other._cursor, other._seen  # noqa: SLF001, of this class

    def look(self) -> bytes:
        """Returns the next frames; empty if there are none yet, and after `done`."""
        view, frames = self.view, b""
        if self._knows_running and self._seen == view.notice_number and self._is_resumed:  # the token path
            frames = self._portion(None)
            self.done = not frames and view.ended
            return frames
        for number, position, notice in view.notices_after(self._seen):
            frames += self._events(position)
            if self._cursor < position or len(frames) >= PORTION:
                break  # the events before the notice must be sent first
            frames += self._encode(notice, None)
            self._seen = number
        else:
            frames += self._events()
        if not frames and self._resumed and not self._knows_running:
            self._knows_running = True  # after all events, because the client then has the calls
            running = (*map(preliminary_notice, view.turn.preliminary), *map(progress_notice, view.turn.open_jobs))
            frames += b"".join(self._encode(notice, None) for notice in running)
            if (actions := elicited(view.turn)) is not None:
                frames += self._encode(actions, None)
            if self._marks_end and not view.ended:
                self._marks_end = False
                frames += self._encode(CAUGHT_UP, None)
        self.done = not frames and view.ended and self._resumed
        return frames

    async def wait(self) -> None:
        """Waits until there may be more events. Call it after a `look` without frames, with no await in between."""
        if self.fed:
            await self.view.wakeup.wait()
        else:
            await self.renew()

    async def renew(self) -> None:
        """Replaces the view by the view of the turn's run on this replica, or by a view of the rows."""
        here = self._directory.running(self.view.turn.id)
        # If a view here lacks the cursor's attempt, its run has lost the claim, and has not detected this yet.
        if here is None or not here.has_had(self._cursor.attempt):
            try:
                here = self._directory.view(await retry_while_unavailable(self._load))
            except NotFound:
                self.view.vanish()
                return
        self.view.unjoined -= self._unjoined
        here.unjoined += self._unjoined
        self.view, self._seen, self._resumed, self._knows_running = here, here.notice_number, False, False

    def _events(self, end: Cursor | None = None) -> bytes:
        return self._portion(end) if self._is_resumed else self._resume(end)

    @property
    def _is_resumed(self) -> bool:
        return self._resumed and self._cursor.attempt == self.view.turn.attempt

    def _resume(self, end: Cursor | None) -> bytes:
        """Converts the cursor of another view or of a request to this view, if possible. Returns the next frames."""
        view, cursor = self.view, self._cursor
        resumed, reset = resume(view, cursor)
        self._resumed = False
        if reset is not None and (view.provisional or (cursor.attempt == view.attempt and not view.ended)):
            # Within one attempt content only grows, so this view is behind the view that made the cursor.
            return b""
        self._cursor, self._resumed = resumed, True
        frames = b"" if reset is None else self._encode(reset, resumed)
        return frames + self._portion(end)

    def _portion(self, end: Cursor | None) -> bytes:
        """Returns the next frames, up to `end` if a notice is due. Readers that share frames get the same bytes at the
        same cursor.
        """
        view, cursor = self.view, self._cursor
        last = view.last_frame
        if self.shares and last is not None and last.start == cursor and (end is None or last.stop <= end):
            self._cursor = last.stop
            return last.data
        frames, size = [], 0
        while size < PORTION and (end is None or cursor < end) and (step := next_event(view, cursor)):
            event, cursor = step
            frame = self._encode(event, cursor)
            frames.append(frame)
            size += len(frame)
        if not frames:
            return b""
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        if self.shares:
            view.last_frame = Frame(self._cursor, cursor, data)
        self._cursor = cursor
        return data


def follow(
    directory: Directory, view: LiveView, load: Load, cursor: Cursor, encode: Encode
) -> AsyncGenerator[bytes, None]:
    """Returns the frames after `cursor`, until the turn has ended. Readers share the encoded bytes."""
    return TurnReader(directory, view, load, cursor, encode, shares=True).frames()

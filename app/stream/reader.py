"""The one reader: read what there is, yield it, wait for more. Live and finished turns are the same lines of code."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from app.domain.cursor import Cursor
from app.domain.errors import NotFound
from app.domain.events import Event, Notice
from app.domain.log import next_event, resume
from app.domain.turns import Turn
from app.storage.database import retry_while_unavailable
from app.stream.directory import Directory
from app.stream.live import Frame, LiveView

# Frames are handed on in portions of about this many bytes: enough to coalesce, too little to fill memory.
PORTION = 65_536

Encode = Callable[[Event | Notice, Cursor | None], bytes]
Load = Callable[[], Awaitable[Turn]]


async def follow(
    directory: Directory, view: LiveView, load: Load, cursor: Cursor, encode: Encode
) -> AsyncGenerator[bytes, None]:
    """The frames after `cursor`, until the turn has ended or was deleted. Readers share what `encode` makes."""
    follower = TurnReader(directory, view, load, cursor, encode, shares=True)
    while not follower.done:
        if frames := follower.look():
            yield frames
        elif not follower.done:
            await follower.wait()


class TurnReader:
    """A reader's place in one turn.

    `view` is what `directory.view` gave for the turn, `load` reads the turn's rows anew. One that `shares` frames with
    others has the one encoder that all of them have.
    """

    def __init__(
        self, directory: Directory, view: LiveView, load: Load, cursor: Cursor, encode: Encode, *, shares: bool = False
    ) -> None:
        self.view = view
        self.done = False
        self._directory = directory
        self._load = load
        self._cursor = cursor
        self._encode = encode
        self._shares = shares
        self._seen = view.notice_number
        self._good = False

    @property
    def fed(self) -> bool:
        """Whether the view's doorbell rings when there is more."""
        return self._directory.is_fed(self.view)

    def look(self) -> bytes:
        """The next frames. None is left for ever once it is `done`.

        Raises ValueError for a cursor of an attempt that the turn has not had.
        """
        view = self.view
        stays = self._good and self._cursor.attempt == view.attempt
        frames = self._portion() if stays else self._take_up()
        if not view.ended:  # nothing comes after the end
            notices, self._seen = view.notices_after(self._seen)
            frames += b"".join(self._encode(notice, None) for notice in notices)
        self.done = not frames and ((view.ended and self._good) or view.vanished)
        return frames

    async def wait(self) -> None:
        """After a look that found nothing: until there may be more."""
        if self.fed:
            await self.view.wakeup.wait()
        else:
            await self.renew()

    async def renew(self) -> None:
        """Finds the turn's view where it is now."""
        here = self._directory.running(self.view.turn.id)
        if here is None or here.attempt < self._cursor.attempt:  # it has lost its claim and does not know it
            try:
                here = self._directory.view(await retry_while_unavailable(self._load))
            except NotFound:
                self.done = True
                return
        self.view, self._seen, self._good = here, here.notice_number, False

    def _take_up(self) -> bytes:
        """Puts a cursor that came from elsewhere into this log, where that can be."""
        view, cursor = self.view, self._cursor
        place, reset = resume(view, cursor)
        self._good = False
        if reset is not None and (view.provisional or (cursor.attempt == view.attempt and not view.ended)):
            # Within one attempt nothing is taken back: this picture is behind the one the cursor came from.
            return b""
        self._cursor, self._good = place, True
        told = b"" if reset is None else self._encode(reset, place)
        return told + self._portion()

    def _portion(self) -> bytes:
        self._cursor, frames = portion(self.view, self._cursor, self._encode, shares=self._shares)
        return frames


def portion(view: LiveView, cursor: Cursor, encode: Encode, *, shares: bool) -> tuple[Cursor, bytes]:
    """The next frames and the cursor after them. Readers at one place may share the bytes."""
    last = view.last_frame
    if shares and last is not None and last.start == cursor:
        return last.stop, last.data
    start, frames, size = cursor, [], 0
    while size < PORTION and (step := next_event(view, cursor)):
        event, cursor = step
        frame = encode(event, cursor)
        frames.append(frame)
        size += len(frame)
    if not frames:
        return cursor, b""
    data = frames[0] if len(frames) == 1 else b"".join(frames)
    if shares:
        view.last_frame = Frame(start, cursor, data)
    return cursor, data

"""The one reader: read what there is, yield it, wait for more. Live and finished turns are the same lines of code."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from app.domain.cursor import Cursor
from app.domain.errors import NotFound
from app.domain.events import Event, Notice
from app.domain.log import next_event, resume
from app.domain.turns import Turn
from app.storage.database import patiently
from app.stream.directory import Directory
from app.stream.live import Frame, LiveView

# Frames are handed on in portions of about this many bytes: enough to coalesce, too little to fill memory.
PORTION = 65_536

Encode = Callable[[Event | Notice, Cursor | None], bytes]
Load = Callable[[], Awaitable[Turn]]


async def tail(
    directory: Directory, view: LiveView, load: Load, cursor: Cursor, encode: Encode
) -> AsyncGenerator[bytes, None]:
    """The frames after `cursor`, until the turn has ended or was deleted.

    `view` is what `directory.view` gave for the turn, `load` reads the turn's rows anew. Raises ValueError for a cursor
    of an attempt that the turn has not had.
    """
    seen = view.notice_number
    good = False
    while True:
        if not good or cursor.attempt != view.attempt:
            cursor, frames, good = _take_up(view, cursor, encode)
        else:
            cursor, frames = portion(view, cursor, encode)
        if not view.ended:  # nothing comes after the end
            notices, seen = view.notices_after(seen)
            frames += b"".join(encode(notice, None) for notice in notices)
        if frames:
            yield frames
        elif (view.ended and good) or view.vanished:
            return
        elif directory.is_fed(view):
            await view.doorbell.wait()
        else:
            here = directory.running(view.turn.id)
            try:  # an owner that is behind the reader has lost its claim and does not know it
                view = here if here and here.attempt >= cursor.attempt else directory.view(await patiently(load))
            except NotFound:
                return
            seen, good = view.notice_number, False


def _take_up(view: LiveView, cursor: Cursor, encode: Encode) -> tuple[Cursor, bytes, bool]:
    """Puts a cursor that came from elsewhere into this log; the flag says whether it could be."""
    place, reset = resume(view, cursor)
    if reset is None:
        return *portion(view, place, encode), True
    if view.provisional or (cursor.attempt == view.attempt and not view.ended):
        # Within one attempt nothing is taken back: this picture is behind the one the cursor came from.
        return cursor, b"", False
    frame = encode(reset, place)
    place, frames = portion(view, place, encode)
    return place, frame + frames, True


def portion(view: LiveView, cursor: Cursor, encode: Encode) -> tuple[Cursor, bytes]:
    """The next frames and the cursor after them. Readers at one place share the bytes."""
    last = view.last_frame
    if last is not None and last.start == cursor:
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
    view.last_frame = Frame(start, cursor, data)
    return cursor, data

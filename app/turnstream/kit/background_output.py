"""Output that a thread writes, so that a server's log and prints neither block its event loop nor stop its process."""

import atexit
import fcntl
import io
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_WAITING = 1 << 20  # bytes
EXIT_PATIENCE = 1.0  # seconds for writing the output that still waits when the process exits
_FIRST_DESCRIPTOR = 10  # above the descriptors of standard input, output and error


class BackgroundOutput(io.RawIOBase):
    """Writes to a copy of `descriptor`, in a thread of its own. `write` never waits and never raises. A piece is
    dropped, and `on_drop` is called, if the piece cannot be written, or if more than `MOST_WAITING` bytes would wait.
    """

    def __init__(self, descriptor: int, on_drop: Callable[[], None]) -> None:
        super().__init__()
        # A copy, because if code closes standard error, the next file that is opened gets the original descriptor.
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        self._on_drop = on_drop
        self._changed = threading.Condition()  # its lock is reentrant, so a signal handler may write too
        self._waiting: SimpleQueue[bytes] = SimpleQueue()  # cheaper than a condition that is notified of each line
        self._size = 0  # bytes that wait or are being written
        self._is_torn = False
        self._is_forked = False
        threading.Thread(target=self._write_all, name="output", daemon=True).start()
        os.register_at_fork(after_in_child=self._note_fork)
        atexit.register(self.drain, EXIT_PATIENCE)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: "ReadableBuffer", /) -> int:
        piece = bytes(data)
        if self._is_forked:
            self._write_piece(piece)
            return len(piece)
        with self._changed:
            fits = self._size + len(piece) <= MOST_WAITING
            if fits:
                self._waiting.put(piece)
                self._size += len(piece)
        if not fits:
            self._on_drop()
        return len(piece)

    def drain(self, seconds: float) -> bool:
        """Waits at most `seconds` until everything is written. Returns True if everything is written."""
        with self._changed:
            return self._changed.wait_for(lambda: self._size == 0, seconds)

    def _write_all(self) -> None:
        while True:
            piece = self._waiting.get()
            self._write_piece(piece)
            with self._changed:
                self._size -= len(piece)
                if self._size == 0:
                    self._changed.notify_all()

    def _write_piece(self, piece: bytes) -> None:
        left = memoryview(b"\n" + piece if self._is_torn else piece)
        whole = len(left)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # another process has made the shared pipe non-blocking
                    poll = select.poll()
                    poll.register(self._descriptor, select.POLLOUT)
                    poll.poll()
            self._is_torn = False
        except OSError:  # the disk is full, or the reader of the pipe is gone
            self._is_torn = self._is_torn or len(left) < whole
            self._on_drop()

    def _note_fork(self) -> None:
        """Makes a forked child write directly, because the child has no writing thread, and perhaps a lock that no
        thread releases.
        """
        self._is_forked = True

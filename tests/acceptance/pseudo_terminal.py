"""A program on a terminal of its own, with somebody who types and looks."""

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.virtual_terminal import Glass

_PATIENCE = 60  # seconds, for a machine that is busy with other tests
# The terminal becomes the one that Ctrl-C comes from.
_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class PseudoTerminal:
    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        folder: Path,
        width: int = 80,
        height: int = 24,
    ) -> None:
        self.glass = Glass(width, height)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *command],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._decoder = getincrementaldecoder("utf-8")()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def sees(self, *texts: str) -> None:
        """Returns once each of `texts` stands on the terminal or in its scrollback."""
        await self._until(lambda: all(text in self.glass.text for text in texts), f"{texts} not")

    async def sees_prompt(self, prompt: str = ">") -> None:
        """Returns once the last line is this prompt, with nothing behind it."""
        await self._until(lambda: self.glass.lines[-1:] == [prompt], f"no prompt {prompt}")

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{otherwise} in\n{self.glass.text}") from None

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, _PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._loop.remove_reader(self._ours)
        os.close(self._ours)

    def _read(self) -> None:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the program has left the terminal
            self._loop.remove_reader(self._ours)
        else:
            self.glass.write(self._decoder.decode(data))
        self._changed.set()

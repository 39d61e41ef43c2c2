"""A program on a pseudo-terminal: the test types its input and reads its screen."""

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
from contextlib import suppress
from pathlib import Path

from tests.support.virtual_terminal import VirtualTerminal

_TIMEOUT = 150  # seconds; tolerates a machine that is busy with other tests
_PATIENCE = 30  # seconds after which a person presses a key again
# Makes the pseudo-terminal the controlling terminal, so that a typed Ctrl-C becomes SIGINT.
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
        self.screen = VirtualTerminal(width, height)
        self._master, program_end = pty.openpty()
        fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *command],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            stdin=program_end,
            stdout=program_end,
            stderr=program_end,
            start_new_session=True,
        )
        os.close(program_end)
        self._decoder = getincrementaldecoder("utf-8")()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._master, self._read)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def interrupt(self) -> None:
        """Types Ctrl-C at a prompt, and repeats it until the screen changes: Python's readline misses a signal that
        arrives between the display of its prompt and its wait for a key.
        """
        before = self.screen.text
        while self.screen.text == before:
            self.type("\x03")
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    while self.screen.text == before:
                        self._changed.clear()
                        await self._changed.wait()

    async def sees(self, *texts: str) -> None:
        """Waits until each of `texts` is on the screen or in the scrollback."""
        await self._until(lambda: all(text in self.screen.text for text in texts), f"{texts} not")

    async def sees_prompt(self, prompt: str = ">") -> None:
        """Waits until the last line equals the prompt."""
        await self._until(lambda: self.screen.lines[-1:] == [prompt], f"no prompt {prompt}")

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{otherwise} in\n{self.screen.text}") from None

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, _TIMEOUT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._loop.remove_reader(self._master)
        os.close(self._master)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program has closed the terminal
            self._loop.remove_reader(self._master)
        else:
            self.screen.write(self._decoder.decode(data))
        self._changed.set()

"""Processes of `turnstream serve`, forked from one process with all imports: a start costs a quarter of the CPU
time.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import TimeoutExpired

_PRELOADED = "tests.support.preloaded"
# Variables that take effect before Python runs the first line of a program. A process with such a variable is not
# forked.
_BEFORE_PYTHON = ("LD_", "MALLOC_", "GLIBC_", "PYTHON")


def can_fork(settings: Mapping[str, str]) -> bool:
    return not any(name.startswith(_BEFORE_PYTHON) for name in settings)


class ForkedProcess:
    """A process with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        context = _context()
        self._process: BaseProcess = context.Process(
            target=_run, args=(list(arguments), str(folder), dict(environment), str(log)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit. Several threads may wait at once."""
        if not wait([self._process.sentinel], timeout):
            raise TimeoutExpired(self._process.name, timeout or 0)
        code = self._process.exitcode
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    return context


def _run(arguments: list[str], folder: str, environment: dict[str, str], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in ((0, nothing), (1, output), (2, output)):
        os.dup2(descriptor, number)
    os.close(output)
    os.close(nothing)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["turnstream", *arguments]
    import_module("turnstream.cli").main(arguments)

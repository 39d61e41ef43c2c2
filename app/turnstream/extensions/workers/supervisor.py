"""Supervises `turnstream serve --workers N`: several processes on one port, each of which is a replica. This process is
their supervisor.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import structlog

from turnstream.cli.notices import ALIVE, READY, STOPPING, notify_supervisor, patience_of_supervisor

log = structlog.get_logger(__name__)

_PAUSE = 1.0  # seconds before a process that has exited is started again
_LOOKS = 10  # number of times that the notices of a process are read within its allowed silence
_START = "import sys; from turnstream.cli import main; sys.argv[0] = 'turnstream'; main()"


@dataclass
class Processes:
    """Runs the processes. A process that exits is started again with the same number. If a process exits before it was
    ready, the settings are wrong, and all processes are stopped. A process that was ready and sends no heartbeat for
    `lease` seconds is killed. `welcome` is printed when all processes are ready.
    """

    port: int
    folder: Path
    count: int
    lease: float
    welcome: str = ""
    status: int = 0
    _running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    _ready: set[int] = field(default_factory=set)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1, self.count + 1):
                group.create_task(self._keep(number))

    def stop(self) -> None:
        """The first call lets running turns end and the second call stops them, like two signals to one process."""
        is_second = self._stopping.is_set()
        self._stopping.set()
        for process in self._running.values():
            if is_second:
                assert process.stdin is not None
                process.stdin.write(b"\n")
            else:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    def note_ready(self, number: int) -> None:
        were = len(self._ready)
        self._ready.add(number)
        if were < self.count == len(self._ready):
            click.echo(self.welcome, err=True)
            notify_supervisor(READY)

    async def _keep(self, number: int) -> None:
        while not self._stopping.is_set():
            status = await self._run_process(number)
            if self._stopping.is_set():
                self.status = max(self.status, status)
            elif number not in self._ready:
                self.status = max(1, status)
                self.stop()
            else:
                log.error("process.ended", number=number, status=status, seconds=_PAUSE)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _PAUSE)

    async def _run_process(self, number: int) -> int:
        """Runs a process. Returns its exit status, or 1 if the system cannot start it, for example because memory is
        missing.
        """
        with _notices(self.folder / f"notify-{number}") as notices:
            try:
                process = await self._started(number)
            except OSError:
                log.exception("process.refused", number=number)
                return 1
            self._running[number] = process
            if self._stopping.is_set():  # the stop was requested while the process started
                process.send_signal(signal.SIGTERM)
            watch = asyncio.create_task(self._watch(number, process, notices))
            status = await process.wait()
            watch.cancel()
            del self._running[number]
            return status

    async def _watch(self, number: int, process: asyncio.subprocess.Process, notices: socket.socket) -> None:
        """Watches a process from its start until it begins to stop. Silence is counted in pauses of this loop, not in
        seconds: if the machine or all processes were suspended, the suspension counts as one pause, and no process is
        killed.
        """
        while await asyncio.get_running_loop().sock_recv(notices, 100) != READY.encode():
            pass
        self.note_ready(number)
        pause, silent = self._patience() / _LOOKS, 0
        while silent * pause < self.lease:
            await asyncio.sleep(pause)
            states = {*_waiting(notices)}
            if STOPPING.encode() in states:
                return
            silent = 0 if states else silent + 1
            if states and patience_of_supervisor():
                notify_supervisor(ALIVE)
        log.error("process.silent", number=number, seconds=self.lease)
        process.kill()

    def _patience(self) -> float:
        """Returns the allowed silence of a process, in seconds. The supervisor of this process receives the notices of
        all processes, and may have a shorter limit.
        """
        return min(self.lease, patience_of_supervisor() or self.lease)

    async def _started(self, number: int) -> asyncio.subprocess.Process:
        """Starts a process with a pipe as its standard input: if this process is killed, the pipe is closed, and the
        started process exits, too. Only the order to stop at once is written to the pipe.
        """
        environment = os.environ | {  # noqa: TID251, handed on as it is
            "TURNSTREAM_PORT": str(self.port),
            "NOTIFY_SOCKET": str(self.folder / f"notify-{number}"),
            "WATCHDOG_USEC": str(int(self._patience() * 1e6)),
        }
        environment.pop("WATCHDOG_PID", None)
        command = (sys.executable, "-c", _START, "serve", "--workers", "1", "--process", f"{number}:{self.folder}")
        return await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.PIPE)


async def serve_in_processes(reserved: socket.socket, count: int, lease: float, welcome: str) -> int:
    """Runs until a signal, or until no process can start. Returns the exit status. `reserved` is the socket that
    reserves the port.
    """
    folder = Path(tempfile.mkdtemp(prefix="turnstream-"))
    processes = Processes(reserved.getsockname()[1], folder, count, lease, welcome)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        notify_supervisor(STOPPING)
        processes.stop()

    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop)
    try:
        await processes.run()
        return processes.status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _notices(path: Path) -> Iterator[socket.socket]:
    """Opens the socket for notices of a process. Unread notices of the previous process with the same number are
    dropped.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(0o600)
        yield listener


def _waiting(notices: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield notices.recv(100)

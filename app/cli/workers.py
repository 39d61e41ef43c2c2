"""`turnstream serve --workers N`: processes on one port, each a replica, and this one that watches over them."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PAUSE = 1.0  # seconds before a process that has ended is started again
_START = "import sys; from app.cli import main; sys.argv[0] = 'turnstream'; main()"


@dataclass
class Processes:
    """A process that ends is started again and takes the place of the one before; where one ends before it was ever
    ready, which is a matter of settings, all are stopped.
    """

    port: int
    folder: Path
    count: int
    status: int = 0
    _running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    _ready: set[int] = field(default_factory=set)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1, self.count + 1):
                group.create_task(self._keep(number))

    def stop(self) -> None:
        """A first call lets running turns end, a second one does not: as signals to one process."""
        is_second = self._stopping.is_set()
        self._stopping.set()
        for process in self._running.values():
            if is_second:
                assert process.stdin is not None
                process.stdin.write(b"\n")
            else:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    def note_ready(self, number: int) -> bool:
        """Notes that a process is ready. Returns whether all are, now for the first time."""
        were = len(self._ready)
        self._ready.add(number)
        return were < self.count == len(self._ready)

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
        """Returns its exit status; 1 where the system cannot start it, as while there is no memory."""
        try:
            process = await self._started(number)
        except OSError:
            log.exception("process.refused", number=number)
            return 1
        self._running[number] = process
        if self._stopping.is_set():  # while it started
            process.send_signal(signal.SIGTERM)
        status = await process.wait()
        del self._running[number]
        return status

    async def _started(self, number: int) -> asyncio.subprocess.Process:
        """Its standard input is a pipe: where this process is killed, that ends, and so does the other. Nothing is
        written to it but the order to stop at once.
        """
        environment = os.environ | {  # noqa: TID251, handed on as it is
            "TURNSTREAM_PORT": str(self.port),
            "NOTIFY_SOCKET": str(self.folder / f"notify-{number}"),
        }
        command = (sys.executable, "-c", _START, "serve", "--workers", "1", "--process", f"{number}:{self.folder}")
        return await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.PIPE)


async def serve_in_processes(reserved: socket.socket, count: int, welcome: str) -> int:
    """Runs until a signal, or until no process can start. Returns the exit status. `reserved` keeps the port."""
    folder = Path(tempfile.mkdtemp(prefix="turnstream-"))
    processes = Processes(reserved.getsockname()[1], folder, count)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        notify_supervisor("STOPPING=1")
        processes.stop()

    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop)
    listeners = []
    try:
        for number in range(1, count + 1):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listener.setblocking(False)
            listener.bind(str(folder / f"notify-{number}"))
            (folder / f"notify-{number}").chmod(0o600)
            listeners.append(listener)

        async def watch(number: int, listener: socket.socket) -> None:
            while True:
                if await loop.sock_recv(listener, 100) == b"READY=1" and processes.note_ready(number):
                    print(welcome, file=sys.stderr, flush=True)
                    notify_supervisor("READY=1")

        watches = [asyncio.create_task(watch(*each)) for each in enumerate(listeners, 1)]
        await processes.run()
        for each in watches:
            each.cancel()
        return processes.status
    finally:
        for listener in listeners:
            listener.close()
        shutil.rmtree(folder, ignore_errors=True)


def notify_supervisor(state: str) -> None:
    """Tells systemd, where that started the server with `Type=notify` (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET")  # noqa: TID251, of the supervisor's protocol and no setting
    if not address:
        return
    # A supervisor that does not listen any more is not waited for.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor:
        # An @ stands for the zero byte of an abstract socket.
        supervisor.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)

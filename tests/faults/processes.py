"""Server processes that are forked in milliseconds, and whose exit can be awaited."""

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.faults.wrong_clock import clock_off_by
from tests.support.server_process import clean_environment

ROOT = Path(__file__).parents[2]


class Process:
    """A server process. `ready` is set when it listens, `ready_after` has the seconds from its fork until then, and
    `dead` is set when it has exited.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ready = asyncio.Event()
        self.ready_after: float | None = None
        self._forked = monotonic()
        self.dead = asyncio.Event()
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:  # the process has exited already
            self.dead.set()
            return
        asyncio.get_running_loop().add_reader(self._handle, self._exited)

    def signal(self, number: signal.Signals) -> None:
        if self.dead.is_set():
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def listens(self) -> None:
        self.ready_after = monotonic() - self._forked
        self.ready.set()

    async def kill(self) -> None:
        if not self.dead.is_set():
            self.signal(signal.SIGKILL)
            await self.dead.wait()

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.dead.set()


@dataclass(frozen=True)
class ForkServer:
    """Starts servers. All servers get `environment`."""

    environment: dict[str, str]
    _process: asyncio.subprocess.Process
    _processes: defaultdict[int, "asyncio.Future[Process]"]
    _forked: "asyncio.Queue[int]"
    _turn: asyncio.Lock

    async def server(self, **environment: str) -> Process:
        starting = asyncio.create_task(self._fork(environment))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # nobody else would kill the process
            await (await starting).kill()
            raise

    async def _fork(self, environment: Mapping[str, str]) -> Process:
        assert self._process.stdin is not None
        async with self._turn:
            self._process.stdin.write(json.dumps({**self.environment, **environment}).encode() + b"\n")
            pid = await self._forked.get()
        return await self._processes[pid]

    async def listen(self) -> None:
        """Reads the lines that the fork server and its children write: `forked` and `ready`."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event, pid = line.split()
            if event == b"forked":
                self._processes[int(pid)] = asyncio.get_running_loop().create_future()
                self._processes[int(pid)].set_result(Process(int(pid)))
                self._forked.put_nowait(int(pid))
            else:
                (await self._processes[int(pid)]).listens()

    async def close(self) -> None:
        for process in list(self._processes.values()):
            await (await process).kill()
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def fork_server(
    folder: Path, monitor_interval: float | None = None, may_skew: bool = False, **environment: str
) -> AsyncIterator[ForkServer]:
    """Starts a fork server. `monitor_interval` is the time in seconds between two checks of the other replicas. If
    `may_skew`, servers with `clock_off_by` have a wrong clock.
    """
    with (folder / "fork-server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.server"),
            cwd=ROOT,
            env=clean_environment()
            | ({"FAULTS_MONITOR_INTERVAL": str(monitor_interval)} if monitor_interval else {})
            | (clock_off_by(0) if may_skew else {}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    common = {"FAULTS_LOG": str(folder / "servers.log"), **environment}
    server = ForkServer(common, process, defaultdict(), asyncio.Queue(), asyncio.Lock())
    listening = asyncio.create_task(server.listen())
    try:
        yield server
    finally:
        await server.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

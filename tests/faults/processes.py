"""Server processes that are forked in milliseconds, and whose end can be awaited."""

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.server_process import clean_environment

ROOT = Path(__file__).parents[2]


class Process:
    """`ready` is set when it listens, `dead` when it is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ready = asyncio.Event()
        self.dead = asyncio.Event()
        self._handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._handle, self._buried)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    async def kill(self) -> None:
        if not self.dead.is_set():
            self.signal(signal.SIGKILL)
            await self.dead.wait()

    def _buried(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.dead.set()


@dataclass(frozen=True)
class Forks:
    """Makes servers; `environment` is what all of them get."""

    environment: dict[str, str]
    _nursery: asyncio.subprocess.Process
    _processes: defaultdict[int, "asyncio.Future[Process]"]
    _born: "asyncio.Queue[int]"
    _turn: asyncio.Lock

    async def server(self, **environment: str) -> Process:
        assert self._nursery.stdin is not None
        async with self._turn:
            self._nursery.stdin.write(json.dumps({**self.environment, **environment}).encode() + b"\n")
            pid = await self._born.get()
        return await self._processes[pid]

    async def listen(self) -> None:
        """What the nursery and the servers say of themselves."""
        assert self._nursery.stdout is not None
        async for line in self._nursery.stdout:
            what, pid = line.split()
            if what == b"forked":
                self._processes[int(pid)] = asyncio.get_running_loop().create_future()
                self._processes[int(pid)].set_result(Process(int(pid)))
                self._born.put_nowait(int(pid))
            else:
                (await self._processes[int(pid)]).ready.set()

    async def close(self) -> None:
        for process in self._processes.values():
            await (await process).kill()
        self._nursery.kill()
        await self._nursery.wait()


@asynccontextmanager
async def forks(folder: Path, look: float | None = None, **environment: str) -> AsyncIterator[Forks]:
    """`look` is how often, in seconds, a replica looks after its peers."""
    with (folder / "nursery.log").open("ab") as log:
        nursery = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.server"),
            cwd=ROOT,
            env=clean_environment() | ({"FAULTS_LOOK": str(look)} if look else {}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    common = {"FAULTS_LOG": str(folder / "servers.log"), "FAULTS_EFFECTS": str(folder / "effects"), **environment}
    made = Forks(common, nursery, defaultdict(), asyncio.Queue(), asyncio.Lock())
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        await made.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

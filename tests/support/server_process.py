"""`turnstream serve` as a process that tests may kill."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

from tests.support.fork_server import ForkedProcess, can_fork

TURNSTREAM = Path(sys.executable).with_name("turnstream")

# Settings for a fast detection of dead replicas. Servers get no settings from the test's environment.
DEFAULTS = {
    "TURNSTREAM_LEASE": "1",
    "TURNSTREAM_POLL_INTERVAL": "0.1",
    "TURNSTREAM_GRACE_PERIOD": "0",
    "TURNSTREAM_DEMO_DELAY": "0",
}
_TIME_LIMIT = 150  # maximum seconds for a start or an exit, on a machine that is busy with other tests


class Server:
    """A server with a fixed address and database, and changing processes. Settings that `start` or `restart` gets also
    apply to later processes.
    """

    command: Sequence[str | Path] | None = None  # the command of a process that is not forked

    def __init__(self, database_url: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"server-{self.port}.log"
        self._folder = folder
        self._settings = {**DEFAULTS, "DATABASE_URL": database_url, "TURNSTREAM_PORT": str(self.port), **settings}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def logs(self) -> str:
        """The output of all processes so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    async def start(self, **settings: str) -> None:
        """Starts a process. Returns when the server is ready."""
        assert self._process is None, "it runs already"
        self._settings.update(settings)
        # The server runs in a separate folder, so that it does not read a developer's .env.
        folder, environment = self._folder, clean_environment() | self._settings
        if self.command is None and can_fork(self._settings):
            self._process = ForkedProcess(["serve"], folder, environment, self.log)
        else:
            command = self.command or (TURNSTREAM, "serve")
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        try:
            async with asyncio.timeout(_TIME_LIMIT):
                await self._ready()
        except TimeoutError:
            raise AssertionError(f"the server was not ready after {_TIME_LIMIT} s\n{self.logs}") from None

    async def kill(self) -> None:
        """Kills the process with SIGKILL, as when the machine crashes."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """Sends SIGTERM, like a deploy. Returns the exit code after the process has exited."""
        return await self._end(signal.SIGTERM)

    async def restart(self, how: signal.Signals = signal.SIGTERM, **settings: str) -> None:
        await self._end(how)
        await self.start(**settings)

    async def ended(self) -> int:
        """Waits until the process exits by itself. Returns its exit code."""
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        return await asyncio.to_thread(process.wait, _TIME_LIMIT)

    async def close(self) -> None:
        """Kills the server. If the process has exited by itself, prints its log, so that the report of a failed test
        includes it.
        """
        if self._process is not None:
            if self._process.poll() is not None:
                print(f"the server ended with {self._process.returncode}\n{self.logs}")
            await self.kill()

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            return await asyncio.to_thread(process.wait, _TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server outlived {how.name} by {_TIME_LIMIT} s\n{self.logs}") from None

    async def _ready(self) -> None:
        assert self._process is not None
        async with httpx2.AsyncClient(base_url=self.url) as client:
            while True:
                if self._process.poll() is not None:
                    raise AssertionError(f"the server ended with {self._process.returncode}\n{self.logs}")
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.02)


def clean_environment() -> dict[str, str]:
    """Returns the environment without settings of turnstream."""
    ours = ("TURNSTREAM_", "ANTHROPIC_", "OPENAI_", "DATABASE_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def turnstream(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process, to its end. Only the timeout of the test limits it: the imports alone cost a second
    of CPU time, which can take many seconds on a loaded machine.
    """
    return subprocess.run(
        [TURNSTREAM, *arguments],
        cwd=folder,
        env=clean_environment() | settings,
        capture_output=True,
        text=True,
        check=False,
    )


# A port is still free after a restart: each port is given once, each worker of a run has its own ports, and the system
# itself assigns only higher ports.
_PORTS = range(12_000, 32_000)
_WORKERS = 8
_given: set[int] = set()


def free_port() -> int:
    own = _PORTS[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS :: _WORKERS]
    while True:
        port = random.choice(own)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port

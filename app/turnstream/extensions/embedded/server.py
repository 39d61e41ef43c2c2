"""Runs PostgreSQL from a wheel, for machines without a server. The first turnstream process that uses a data folder
starts the server. All processes that use the folder share the server, and the last of them stops it.

No process id is trusted. Instead, processes lock two files, and the kernel releases the lock of a process however the
process ends:

users.lock    shared by all processes that use the server or wait for it; a process that can lock it alone is the last
server.lock   inherited by PostgreSQL; a process that can lock it knows that no process of the server is left
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from turnstream.domain.errors import ConfigError
from turnstream.extensions.embedded.account import ELSEWHERE
from turnstream.extensions.embedded.cluster import START_TIMEOUT, Cluster
from turnstream.kit.backoff import backoff

log = structlog.get_logger(__name__)

_POLL = 0.01
# Seconds between two checks whether the server still has a process. The time doubles after each failed start.
WATCH = 1.0
_LONGEST_PAUSE = 60.0
_CLUSTER = "postgres"  # the name of the cluster's folder in the data folder

_Result = TypeVar("_Result")


@asynccontextmanager
async def embedded_postgres(data_dir: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Runs a server on `data_dir`, and yields its DSN. `settings` are PostgreSQL's; a server that already runs keeps
    its own settings. If the server dies, it is started again.

    Raises ConfigError, with the end of the server's log if there is a log.
    """
    server = EmbeddedPostgres(data_dir, settings)
    try:
        url = await _to_its_end(server.enter)
        watching = asyncio.create_task(_keep_running(server))
        try:
            yield url
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await _to_its_end(server.leave)


async def _keep_running(server: "EmbeddedPostgres") -> None:
    failures, pause = 0, WATCH
    while True:
        await asyncio.sleep(pause)
        try:
            if await _to_its_end(server.start_again):
                log.warning("postgres.started")
            failures, pause = 0, WATCH
        except ConfigError as error:  # the disk may be full for a while, or the folder unreachable
            failures += 1
            pause = backoff(failures + 1, WATCH, _LONGEST_PAUSE)
            log.error("postgres.not_started", error=str(error), seconds=pause)


def is_made(data_dir: Path) -> bool:
    """Whether a server has ever been started on `data_dir`."""
    return (data_dir / _CLUSTER).is_dir()


class EmbeddedPostgres:
    """Does the same as `embedded_postgres`, for callers without an event loop."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = data_dir.absolute()
        self._cluster = Cluster(self._folder / _CLUSTER, settings or {})
        self._use: int | None = None

    def __enter__(self) -> str:
        return self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> str:
        try:
            with _explained(self._folder):
                self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                self._use = use = _open(self._folder / "users.lock")
                _wait(lambda: _locked(use, fcntl.LOCK_SH), "another process took too long to stop the server")
                with _closing(_open(self._folder / "server.lock")) as lock:
                    # If the server has live processes but does not answer, it is still starting or stopping, and the
                    # process that requested this was killed. So wait until the start or the stop is complete.
                    _wait(lambda: self._cluster.accepts() or _locked(lock), "the server did not answer")
                    if not self._cluster.accepts():
                        self._cluster.start(lock)
                return self._cluster.dsn()
        except BaseException:
            self.leave()
            raise

    def start_again(self) -> bool:
        """Starts the server if none of its processes is left, for example after `kill -9`. Returns whether the server
        was started. The caller must have entered the context.
        """
        with _explained(self._folder), _closing(_open(self._folder / "server.lock")) as lock:
            if not _locked(lock):
                return False
            log.error("postgres.ended", end_of_log=self._cluster.end_of_log())
            if not self._cluster.folder.exists():  # a new database would hide the loss
                raise ConfigError(f"The folder of the embedded database, {self._cluster.folder}, is gone.")
            self._cluster.start(lock)
            return True

    def leave(self) -> None:
        if self._use is None:
            return
        use, self._use = self._use, None
        with _closing(use), _explained(self._folder):
            if _locked(use):
                with _closing(_open(self._folder / "server.lock")) as lock:
                    _wait(lambda: self._is_gone(lock), "the server did not stop")
                    self._cluster.clean_up()

    def _is_gone(self, lock: int) -> bool:
        """Whether the server is gone. Each call requests the stop again, because a server that has just started ignores
        the first signals.
        """
        if not _locked(lock):
            self._cluster.interrupt()
            return False
        return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise ConfigError(f"The embedded database cannot be used: {otherwise}; {ELSEWHERE}.")
        time.sleep(_POLL)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"The embedded database cannot use {folder}: {error}; {ELSEWHERE}.") from error


async def _to_its_end(work: Callable[[], _Result]) -> _Result:
    """Runs `work` in a thread until it returns, even if the caller is cancelled. An abandoned start would leave a
    server that no process stops.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise

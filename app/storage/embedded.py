"""PostgreSQL from a wheel, for those who have no server: started by whoever comes first, shared by every
turnstream process on the same folder, stopped by whoever leaves last.

No process id is trusted. Three files are locked instead, which the kernel unlocks however a process ends:

starting.lock   held while someone starts or stops the server
users.lock      shared by all who use the server; whoever can have it alone is the last
server.lock     inherited by PostgreSQL itself; whoever can have it knows that none of its processes is left
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from app.domain.errors import ConfigError
from app.storage.embedded_account import ELSEWHERE
from app.storage.embedded_cluster import PATIENCE, Cluster

_POLL = 0.01

_Result = TypeVar("_Result")


@asynccontextmanager
async def embedded_postgres(data_dir: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """The DSN of a server on `data_dir`. `settings` are PostgreSQL's; a running server keeps its own.

    Raises ConfigError, with the end of the server's log where there is one.
    """
    server = EmbeddedPostgres(data_dir, settings)
    try:
        yield await _to_its_end(server.enter)
    finally:
        await _to_its_end(server.leave)


class EmbeddedPostgres:
    """The same for callers without an event loop."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = data_dir.absolute()
        self._cluster = Cluster(self._folder / "postgres", settings or {})
        self._use: int | None = None

    def __enter__(self) -> str:
        return self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> str:
        try:
            with _explained(self._folder):
                self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                with self._starting():
                    self._use = _open(self._folder / "users.lock")
                    fcntl.flock(self._use, fcntl.LOCK_SH)
                    self._ensure_running()
                    return self._cluster.dsn()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        if self._use is None:
            return
        use, self._use = self._use, None
        with _closing(use), _explained(self._folder), self._starting():
            if _locked(use):
                self._ensure_stopped()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        with _closing(_open(self._folder / "starting.lock")) as lock:
            _wait(lambda: _locked(lock), f"another process keeps {self._folder}/starting.lock locked")
            yield

    def _ensure_running(self) -> None:
        # While it neither answers nor is gone, it starts or stops for someone who was killed meanwhile.
        with _closing(_open(self._folder / "server.lock")) as lock:
            _wait(lambda: self._cluster.accepts() or _locked(lock), "the server does not answer")
            if not self._cluster.accepts():
                self._cluster.start(lock)

    def _ensure_stopped(self) -> None:
        with _closing(_open(self._folder / "server.lock")) as lock:
            if not _locked(lock):
                self._cluster.interrupt()
                _wait(lambda: _locked(lock), "the server does not stop")
                self._cluster.clean_up()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Tries to have the lock alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise ConfigError(f"embedded database: {otherwise}; {ELSEWHERE}")
        time.sleep(_POLL)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the embedded database cannot use {folder}: {error}; {ELSEWHERE}") from error


async def _to_its_end(work: Callable[[], _Result]) -> _Result:
    """In a thread, and to its end even when cancelled: nobody would stop what an abandoned start leaves."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise

"""Several processes on one port: `turnstream serve --workers N`."""

import socket
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.extensions.workers.process import WorkerProcess


class WorkerSettings(Section):
    workers: int = Field(1, ge=1, le=64, description="processes that serve the port, each a replica; serve --workers")


class Workers:
    def __init__(self, settings: Settings) -> None:
        self.count = settings.section(WorkerSettings).workers
        self._lease = settings.lease

    async def supervise(self, reserved: socket.socket, count: int, welcome: str) -> int:
        from turnstream.extensions.workers.supervisor import serve_in_processes

        return await serve_in_processes(reserved, count, self._lease, welcome)

    def process(self, place: str) -> "WorkerProcess":
        from turnstream.extensions.workers.process import WorkerProcess

        return WorkerProcess(place)


EXTENSION = Extension("workers", "several processes on one port", settings=WorkerSettings, processes=Workers)

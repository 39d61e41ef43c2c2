"""Measurements with several servers, or in which a server dies. Each trial starts its servers and fills a table."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.candidates import Server, served, turnstream
from tests.bench.database import Postgres
from tests.bench.processes import SERVER_CPU
from tests.bench.provider import FakeProvider

Rows = Mapping[str, tuple[float | None, ...]]

# A setting for a replica that must run no turns: it polls the queue too rarely to find a turn.
SELDOM = {"TURNSTREAM_POLL_INTERVAL": "600"}


@dataclass(frozen=True, slots=True)
class Site:
    """What the servers of a trial share."""

    provider: FakeProvider
    database: Postgres
    folder: Path

    def served(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        cpu: int | None = SERVER_CPU,
        module: str | None = None,
    ) -> AbstractContextManager[Server]:
        """Starts a server. `module` replaces `turnstream serve`."""
        candidate = turnstream(self.database.url, settings)
        if module is not None:
            candidate = replace(candidate, command=(sys.executable, "-m", module))
        return served(candidate, self.provider.url, self.folder, port=port, cpu=cpu)


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial. `run` returns rows by the name of the measure, and each row has one figure per column."""

    name: str
    title: str
    columns: tuple[str, ...]
    run: Callable[[Site], Rows]

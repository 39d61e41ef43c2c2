"""Measurements with several servers, or with a dying server. Each trial starts its own and fills a small table."""

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

# Where a replica shall run no turns: it looks for them without a ring so seldom that it never meets one.
SELDOM = {"TURNSTREAM_POLL_INTERVAL": "600"}


@dataclass(frozen=True, slots=True)
class Site:
    """The environment for the start of servers."""

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
        """`module` is run in the place of `turnstream serve`."""
        candidate = turnstream(self.database.url, settings)
        if module is not None:
            candidate = replace(candidate, command=(sys.executable, "-m", module))
        return served(candidate, self.provider.url, self.folder, port=port, cpu=cpu)


@dataclass(frozen=True, slots=True)
class Trial:
    """`run` returns a row of figures, one for each of `columns`, by what they measure."""

    name: str
    title: str
    columns: tuple[str, ...]
    run: Callable[[Site], Rows]

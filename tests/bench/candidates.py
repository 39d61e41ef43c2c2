"""The servers that are compared, and how each is started."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from tests.bench.load import Load, LoadResult, RunningLoad, run_load, started_load
from tests.bench.processes import SERVER_CPU, free_port, running, wait_until_answering

Name = Literal["turnstream", "relay"]
NAMES: tuple[Name, ...] = ("turnstream", "relay")


@dataclass(frozen=True, slots=True)
class Candidate:
    name: Name
    command: tuple[str, ...]
    ready_path: str
    environment: dict[str, str] = field(default_factory=dict)


def turnstream(database_url: str, settings: Mapping[str, str] | None = None) -> Candidate:
    environment = {"DATABASE_URL": database_url, "TURNSTREAM_HOST": "127.0.0.1"}
    return Candidate(
        "turnstream",
        (str(Path(sys.executable).with_name("turnstream")), "serve"),
        "/readyz",
        environment | dict(settings or {}),
    )


def relay() -> Candidate:
    options = "--loop uvloop --http httptools --no-access-log --log-level warning --backlog 4096"
    return Candidate("relay", (sys.executable, "-m", "uvicorn", "tests.bench.relay:app", *options.split()), "/healthz")


@dataclass(frozen=True, slots=True)
class Server:
    """A candidate that is up."""

    name: Name
    port: int
    process: psutil.Process

    def run(self, load: Load) -> LoadResult:
        return run_load(self.name, self.port, load)

    @contextmanager
    def start(self, load: Load) -> Iterator[RunningLoad]:
        with started_load(self.name, self.port, load) as run:
            yield run


@contextmanager
def served(
    candidate: Candidate, provider_url: str, folder: Path, *, port: int = 0, cpu: int | None = SERVER_CPU
) -> Iterator[Server]:
    port, log = port or free_port(), folder / f"{candidate.name}.log"
    command, environment = candidate.command, provider_environment(provider_url) | candidate.environment
    if candidate.name == "relay":
        command = (*command, "--port", str(port))
    environment |= {"TURNSTREAM_PORT": str(port)}
    with running(command, cpu=cpu, log=log, environment=environment) as process:
        wait_until_answering(process, port, candidate.ready_path, log)
        yield Server(candidate.name, port, process)


def provider_environment(url: str) -> dict[str, str]:
    """Without the limits of an owner: a load is of one."""
    unlimited = {f"TURNSTREAM_OWNER_{what}": "0" for what in ("RUNNING_TURNS", "QUEUED_TURNS", "STREAMS")}
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "bench", **unlimited}

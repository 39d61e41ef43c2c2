"""The servers that are compared, and how they start."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.bench.load import Dialect, Load, LoadResult, RunningLoad, run_load, started_load
from tests.bench.processes import SERVER_CPU, free_port, running, wait_until_answering

NAMES: Final = ("turnstream", "relay")
_UVICORN: Final = "--loop uvloop --http httptools --no-access-log --log-level warning --backlog 4096 --port {port}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The command that starts a server. `{port}` in the command and in the environment is replaced by the port."""

    name: str
    dialect: Dialect
    command: tuple[str, ...]
    ready_path: str
    environment: dict[str, str] = field(default_factory=dict)


def turnstream(database_url: str, settings: Mapping[str, str] | None = None) -> Candidate:
    environment = {"DATABASE_URL": database_url, "TURNSTREAM_HOST": "127.0.0.1", "TURNSTREAM_PORT": "{port}"}
    return Candidate(
        "turnstream",
        "turnstream",
        (str(Path(sys.executable).with_name("turnstream")), "serve"),
        "/readyz",
        environment | dict(settings or {}),
    )


def relay() -> Candidate:
    return Candidate("relay", "relay", asgi("tests.bench.relay:app"), "/healthz")


def asgi(app: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "uvicorn", app, *_UVICORN.split())


@dataclass(frozen=True, slots=True)
class Server:
    """A candidate that accepts requests."""

    name: str
    dialect: Dialect
    port: int
    process: psutil.Process

    def run(self, load: Load) -> LoadResult:
        return run_load(self.dialect, self.port, load)

    @contextmanager
    def start(self, load: Load) -> Iterator[RunningLoad]:
        with started_load(self.dialect, self.port, load) as run:
            yield run


@contextmanager
def served(
    candidate: Candidate, provider_url: str, folder: Path, *, port: int = 0, cpu: int | None = SERVER_CPU
) -> Iterator[Server]:
    port, log = port or free_port(), folder / f"{candidate.name}.log"
    command = [word.replace("{port}", str(port)) for word in candidate.command]
    given = {name: value.replace("{port}", str(port)) for name, value in candidate.environment.items()}
    environment = provider_environment(provider_url) | given
    with running(command, cpu=cpu, log=log, environment=environment) as process:
        wait_until_answering(process, port, candidate.ready_path, log)
        yield Server(candidate.name, candidate.dialect, port, process)


def provider_environment(url: str) -> dict[str, str]:
    """Returns the environment of a server. It removes the limits per owner, because one owner sends the whole load."""
    unlimited = {"TURNSTREAM_OWNER_RUNNING_TURNS": "0", "TURNSTREAM_OWNER_STREAMS": "0"}
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "bench", **unlimited}

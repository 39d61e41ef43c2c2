"""The servers of the scoreboard, each configured by its own documentation, and the installation of the peers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil

from tests.bench.candidates import Candidate, asgi, relay, turnstream
from tests.bench.database import Postgres
from tests.bench.native import ROOT
from tests.bench.processes import TOOLS_CPU, cpu_seconds, free_port, running

PEERS: Final = ROOT / ".peers"
SOURCES: Final = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server of the scoreboard. If `single`, one request sends the message, and its answer is the stream. `store` is
    the server's database.
    """

    title: str
    about: str
    versions: dict[str, str]
    candidate: Candidate
    single: bool = True
    store: Postgres | psutil.Process | None = None

    def store_seconds(self) -> float:
        match self.store:
            case None:
                return 0.0
            case Postgres():
                return self.store.cpu_seconds()
            case process:
                return cpu_seconds(process)


def of_this_tree(database: Postgres) -> Iterator[Contestant]:
    served_by = {name: version(name) for name in ("starlette", "uvicorn", "uvloop")}
    yield Contestant(
        "turnstream",
        "one process with its defaults, Postgres; no limits of owners; `TURNSTREAM_RECOVERY=retry`",
        {"turnstream": version("turnstream"), "PostgreSQL": database.version} | served_by,
        turnstream(database.url, {"TURNSTREAM_RECOVERY": "retry"}),
        store=database,
    )
    yield Contestant(
        "bare relay",
        "`tests/bench/relay.py`: Starlette, the SDK, sse-starlette",
        {name: version(name) for name in ("anthropic", "sse-starlette")} | served_by,
        relay(),
    )
    yield Contestant(
        "raw Python",
        "`tests/bench/raw.py`: sockets and raw ASGI, no library for the provider",
        {name: version(name) for name in ("httptools", "msgspec", "uvicorn", "uvloop")},
        Candidate("raw", "relay", asgi("tests.bench.raw:app"), "/healthz"),
    )


# --- peers, each in an environment of its own ------------------------------------------------------------------------

LITELLM: Final = {"litellm[proxy]": "1.108.7"}
LANGGRAPH: Final = {"langgraph-cli[inmem]": "0.4.40", "langgraph-api": "0.16.7", "langchain-anthropic": "1.7.10"}
AI_SDK: Final = {"ai": "6.0.326", "@ai-sdk/anthropic": "3.0.140", "resumable-stream": "2.2.13", "redis": "6.3.1"}


class CannotInstallError(Exception):
    pass


def environment_of(name: str, pins: dict[str, str]) -> Path:
    """Creates a virtual environment with these packages, unless it exists."""
    folder = PEERS / name
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", str(folder))
        run(str(folder / "bin/pip"), "install", "--quiet", *(f"{package}=={pin}" for package, pin in pins.items()))
        (folder / "installed").touch()
    return folder


def run(*command: str, folder: Path = ROOT) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotInstallError(f"{' '.join(command[:3])}: {error}") from error


@contextmanager
def litellm(_: Path) -> Iterator[Contestant]:
    folder = environment_of("litellm", LITELLM)
    command = (
        f"{folder}/bin/litellm",
        "--config",
        f"{SOURCES}/litellm.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    )
    without_a_key = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOG": "ERROR"}
    yield Contestant(
        "LiteLLM proxy",
        "one worker, `/v1/chat/completions`, no database",
        LITELLM,
        Candidate("litellm", "chat-completions", command, "/health/liveliness", without_a_key),
    )


@contextmanager
def langgraph(_: Path) -> Iterator[Contestant]:
    folder = environment_of("langgraph", LANGGRAPH)
    app = folder / "app"
    app.mkdir(exist_ok=True)
    for name in ("agent.py", "langgraph.json"):
        shutil.copyfile(SOURCES / name, app / name)
    options = "dev --no-browser --no-reload --host 127.0.0.1 --port {port} --n-jobs-per-worker 500"
    # Paths in `langgraph.json` are relative to the working directory.
    command = ("env", "-C", str(app), f"{folder}/bin/langgraph", *options.split(), "--config", f"{app}/langgraph.json")
    environment = {"LANGSMITH_TRACING": "false", "PATH": f"{folder}/bin:{os.environ['PATH']}", "LOG_LEVEL": "WARNING"}
    yield Contestant(
        "LangGraph dev server",
        "in memory, `--n-jobs-per-worker 500`, `--no-reload`, a thread for each turn, `messages-tuple`",
        LANGGRAPH,
        Candidate("langgraph", "agent-protocol", command, "/ok", environment),
        single=False,
    )


@contextmanager
def ai_sdk(logs: Path) -> Iterator[Contestant]:
    folder = PEERS / "ai-sdk"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run(
            "npm",
            "install",
            "--silent",
            "--prefix",
            ".",
            *(f"{package}@{pin}" for package, pin in AI_SDK.items()),
            folder=folder,
        )
        (folder / "installed").touch()
    server = folder / "server.mjs"
    shutil.copyfile(SOURCES / "ai-sdk.mjs", server)
    redis, port = shutil.which("redis-server"), free_port()
    if redis is None:
        raise CannotInstallError("redis-server is not installed")
    environment = {"PORT": "{port}", "REDIS_URL": f"redis://127.0.0.1:{port}"}
    with running((redis, "--port", str(port), "--save", ""), cpu=TOOLS_CPU, log=logs / "redis.log") as store:
        yield Contestant(
            "AI SDK, resumable-stream",
            "Node, `streamText` with a Redis for resuming (`tests/bench/peers/ai-sdk.mjs`)",
            AI_SDK | {"Node": subprocess.check_output(["node", "--version"], text=True).strip()},
            Candidate("ai-sdk", "ui-messages", ("node", str(server)), "/healthz", environment),
            store=store,
        )


PEER_STARTS: Final = {"ai-sdk": ai_sdk, "langgraph": langgraph, "litellm": litellm}

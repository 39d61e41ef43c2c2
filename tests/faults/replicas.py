"""Server processes on one database, with a model that pauses on demand: `turnstream serve` with a tool that has
effects.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.faults.model import Model
from tests.support.http_client import Client
from tests.support.server_process import Server, clean_environment

ROOT = Path(__file__).parents[2]


class Replica(Server):
    command: Sequence[str | Path] = (sys.executable, "-m", "tests.faults.replica")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def turns_running(self) -> int:
        async with Client(self.url) as client:
            metrics = (await client.get("/metrics")).text
        samples = {
            sample.name: sample.value for family in text_string_to_metric_families(metrics) for sample in family.samples
        }
        return int(samples["turnstream_turns_running"])

    async def turnstream(self, *arguments: str, **settings: str) -> tuple[int | None, str]:
        """Runs a command with the settings of the server. Returns the exit code and the output."""
        environment = clean_environment() | self._settings | settings
        # In an earlier version the package is called `app`.
        package = "app" if Path(environment["PYTHONPATH"], "app/cli").is_dir() else "turnstream"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"from {package}.cli import main; main()"),
            *arguments,
            cwd=self._folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()


class PlainReplica(Replica):
    """A replica that runs `turnstream serve` with the tools of its file."""

    command = (sys.executable, "-c", "from turnstream.cli import main; main()", "serve")


@asynccontextmanager
async def two_replicas(
    database_url: str, folder: Path, model: Model, **settings: str
) -> AsyncIterator[tuple[Replica, Replica]]:
    async with replicas_with(database_url, folder, model, settings, settings) as (one, other):
        yield one, other


@asynccontextmanager
async def replicas_with(
    database_url: str, folder: Path, model: Model, *settings: Mapping[str, str]
) -> AsyncIterator[Sequence[Replica]]:
    """Starts a replica for each of the `settings`."""
    replicas = [replica_with(database_url, folder, model, each) for each in settings]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield replicas
    finally:
        for replica in replicas:
            await replica.close()


def replica_with(
    database_url: str, folder: Path, model: Model, settings: Mapping[str, str], kind: type[Replica] = Replica
) -> Replica:
    """Returns a replica before its start. PYTHONPATH in the settings may be the folder with the code of another
    version.
    """
    usual = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url, "PYTHONPATH": str(ROOT)}
    return kind(database_url, folder, {**usual, **settings})

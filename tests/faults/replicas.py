"""Server processes around a held model, on one database: `turnstream serve` with a tool that has effects."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.faults.model import Model
from tests.support.http_client import Client
from tests.support.server_process import Server

ROOT = Path(__file__).parents[2]


class Replica(Server):
    command = (sys.executable, "-m", "tests.faults.replica")

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
    """A replica for each of the `settings`."""
    usual = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url, "PYTHONPATH": str(ROOT)}
    replicas = [Replica(database_url, folder, {**usual, **each}) for each in settings]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield replicas
    finally:
        for replica in replicas:
            await replica.close()

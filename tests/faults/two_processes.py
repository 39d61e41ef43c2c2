"""`turnstream serve --workers 2`, as processes that tests may kill and freeze."""

import asyncio
from contextlib import suppress

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_client import Client
from tests.support.server_process import TURNSTREAM, Server


class TwoProcesses(Server):
    command = (TURNSTREAM, "serve", "--workers", "2")

    def processes(self) -> list[psutil.Process]:
        return [each for each in psutil.Process(self.pid).children() if "--process" in " ".join(each.cmdline())]


async def running(client: Client) -> dict[str, float]:
    """Returns the number of turns that each process runs."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    return {s.labels["process"]: s.value for s in samples if s.name == "turnstream_turns_running"}


async def until_both_serve(client: Client) -> None:
    """Waits for both processes. If a process ends, the system resets connections that the process had not accepted."""
    served = 0
    while served < 2:
        with suppress(httpx2.TransportError):
            served = len(await running(client))
        await asyncio.sleep(0.05)  # the start of a process has no event here

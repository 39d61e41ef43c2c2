"""The cost of a start after `kill -9`: CPU time until the server answers, on a migrated database."""

import statistics
from collections.abc import Callable

from tests.bench.processes import cpu_seconds
from tests.bench.trials import Rows, Site

TARGET = 1.0  # seconds of CPU


def start(times: int) -> Callable[[Site], Rows]:
    """Measures starts with compiled bytecode, so the first start is not counted."""

    def run(site: Site) -> Rows:
        seconds = []
        for time in range(times + 1):
            with site.served() as server:
                if time:
                    seconds.append(cpu_seconds(server.process))
                server.process.kill()
        return {"until it answers, with a provider's key, CPU s": (statistics.median(seconds), max(seconds), TARGET)}

    return run

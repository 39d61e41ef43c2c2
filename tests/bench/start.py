"""What a start costs: CPU until the server answers, on a database that is migrated, after `kill -9`."""

import statistics
from collections.abc import Callable

from tests.bench.processes import cpu_seconds
from tests.bench.trials import Rows, Site

TARGET = 1.0  # seconds of CPU


def start(times: int) -> Callable[[Site], Rows]:
    """The bytecode is compiled: the first start is not counted."""

    def run(site: Site) -> Rows:
        seconds = []
        for time in range(times + 1):
            with site.served() as server:
                if time:
                    seconds.append(cpu_seconds(server.process))
                server.process.kill()
        return {"until it answers, with a provider's key, CPU s": (statistics.median(seconds), max(seconds), TARGET)}

    return run

"""The load of this machine, for tests of durations such as a lease."""

import os


def slowdown() -> float:
    """The number of processes that want a CPU, per CPU: 1 on a quiet machine, at most 6."""
    return min(6.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))

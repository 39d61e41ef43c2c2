"""The load of this machine, for tests that depend on durations such as a lease."""

import os


def slowdown() -> float:
    """Returns the number of processes per CPU that want to run: 1 on a quiet machine, at most 6."""
    return min(6.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))

"""Back-off: pauses between tries that grow with the failures in a row."""

import random

_MOST_STEPS = 60  # enough for every `longest`; a power beyond would overflow


def backoff(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Returns the seconds before the next try after `failures` in a row, at least one: `first`, then `factor` times as
    many each time, at most `longest`.
    """
    return min(longest, first * factor ** min(failures - 1, _MOST_STEPS))


def jittered(pause: float) -> float:
    """Returns half of the pause up to all of it, by chance: clients that failed together do not return together."""
    return pause * random.uniform(0.5, 1.0)  # noqa: S311, no secret depends on it

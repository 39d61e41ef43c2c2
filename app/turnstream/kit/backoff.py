"""Back-off: pauses between tries that grow with the failures in a row."""

import random

_MOST_STEPS = 60  # enough for every `longest`; a power beyond would overflow


def backoff(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Returns the seconds before the next try after `failures` in a row, at least one: `first`, then `factor` times as
    many each time, at most `longest`.
    """
    return min(longest, first * factor ** min(failures - 1, _MOST_STEPS))


def jittered(pause: float, least: float = 0.5, most: float = 1.0) -> float:
    """Returns `least` to `most` times the pause, by chance: those who failed together do not return together."""
    return pause * random.uniform(least, most)  # noqa: S311, no secret depends on it

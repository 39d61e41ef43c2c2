"""Back-off: pauses between tries, which grow with the number of failures in a row."""

import random

_MOST_STEPS = 60  # enough to reach every `longest`; a greater power would overflow


def backoff(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Returns the seconds before the next try after `failures` failures in a row (at least one): `first` seconds after
    the first failure, `factor` times as many after each later failure, but at most `longest`.
    """
    return min(longest, first * factor ** min(failures - 1, _MOST_STEPS))


def jittered(pause: float, least: float = 0.5, most: float = 1.0) -> float:
    """Returns the pause times a random factor from `least` to `most`, so that clients do not all retry at once."""
    return pause * random.uniform(least, most)  # noqa: S311, no secret depends on it

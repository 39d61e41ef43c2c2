"""Searches for the highest load that passes, with few probes because each probe is expensive."""

from collections.abc import Callable

STEP = 5
GROWTH = 1.5
CLOSE_ENOUGH = 0.06


def highest_passing(passes: Callable[[int], bool], start: int, ceiling: int, probes: int) -> int:
    """Returns the largest value that passed, or 0. Grows or shrinks the value to find a bracket, then bisects the
    bracket.
    """
    best, failed, value = 0, ceiling + STEP, start
    for _ in range(probes):
        if passes(value):
            best = value
        else:
            failed = value
        value = next_value(best, failed, ceiling)
        if value <= best or value >= failed or failed - best < best * CLOSE_ENOUGH:
            break
    return best


def next_value(best: int, failed: int, ceiling: int) -> int:
    if failed > ceiling:
        return min(rounded(best * GROWTH), ceiling)
    if best == 0:
        return rounded(failed / GROWTH)
    return rounded((best + failed) / 2)


def rounded(value: float) -> int:
    return max(STEP, round(value / STEP) * STEP)

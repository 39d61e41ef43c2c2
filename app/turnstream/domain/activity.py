"""The work of a turn, in the memory of the replica that runs it."""

from dataclasses import dataclass
from typing import Literal

# The present work of a running turn; `retrying` is the wait before a failed model call is made again,
# `waiting` the wait for a rate limit of the provider.
Stage = Literal["processing", "waiting", "streaming", "executing", "retrying"]

REPORTS = 3.0  # seconds between two reports of a replica about its turns


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A tool call that runs, for so many seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a turn in the memory of its replica. `silent` is how long ago the provider sent the last bytes in a
    model call that is open. `readers` counts the readers on this replica. Times are in seconds.
    """

    stage: Stage | None = None
    stage_seconds: float = 0.0
    silent: float | None = None
    calls: tuple[RunningCall, ...] = ()
    readers: int = 0

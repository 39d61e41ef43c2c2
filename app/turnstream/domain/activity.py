"""The work of a turn, in the memory of the replica that runs it."""

from dataclasses import dataclass
from typing import Literal

# The present work of a running turn. `retrying`: the pause before the next try of a failed model call. `waiting`: the
# wait for a rate limit of the provider.
Stage = Literal["processing", "waiting", "streaming", "executing", "retrying"]

REPORTS = 3.0  # seconds between two reports of a replica about its turns


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running tool call. `seconds` is the time since its start."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a turn in the memory of its replica. `silent` is the time since the last bytes of the provider, in
    an open model call. `readers` counts the readers on this replica. Times are in seconds.
    """

    stage: Stage | None = None
    stage_seconds: float = 0.0
    silent: float | None = None
    calls: tuple[RunningCall, ...] = ()
    readers: int = 0

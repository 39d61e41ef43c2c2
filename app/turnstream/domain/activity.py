"""The activity of a turn, as known in the memory of the replica that runs the turn."""

from dataclasses import dataclass
from typing import Literal

# The present work of a running turn. `retrying`: the turn pauses before it retries a failed model call. `waiting`: a
# rate limit of the provider delays the model call.
Stage = Literal["processing", "waiting", "streaming", "executing", "retrying"]

REPORTS = 3.0  # seconds between two reports in which a replica stores the activity of its turns


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running tool call. `seconds` is the time since its start."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a turn in the memory of its replica. If a model call is open, `silent` is the time since the
    provider last sent bytes. `readers` counts the readers on this replica. Times are in seconds.
    """

    stage: Stage | None = None
    stage_seconds: float = 0.0
    silent: float | None = None
    calls: tuple[RunningCall, ...] = ()
    readers: int = 0

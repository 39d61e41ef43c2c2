"""Jobs: calls that run apart from their turn, which waits for them without memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from turnstream.domain.blocks import CallKey

# What runs the call: `tool` is a background tool of this server.
JobKind = Literal["tool"]

# `running` has a runner; the job of a runner that is gone is `running` until another one claims it. `settled` has an
# outcome. `stopped`: the call got another result. tests/integration/test_states.py runs every statement against this.
JobState = Literal["due", "running", "settled", "stopped"]
JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    "due": frozenset({"running", "settled", "stopped"}),
    "running": frozenset({"due", "settled", "stopped"}),
    "settled": frozenset(),
    "stopped": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a call, as the turn sees it. `progress` is what it last reported. A job that is `settled` is over;
    its `outcome`, as JSON text, is None once the call has its result.
    """

    id: UUID
    round: int
    tool_use_id: str
    name: str
    kind: JobKind
    progress: str | None = None
    settled: bool = False
    outcome: str | None = None

    @property
    def key(self) -> CallKey:
        return self.round, self.tool_use_id

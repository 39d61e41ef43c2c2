"""Jobs: calls that run apart from their turn. A turn that waits for a job uses no memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from turnstream.domain.blocks import CallKey

# The kind of runner that executes the call, which people see: `tool` is a background tool of this server, `child` is
# the turn of an agent. Extensions add other kinds.
JobKind = str

# `running`: a runner executes the job. The job of a dead runner is `running` until another runner claims the job.
# `detached`: the work continues outside of the server, and a handle identifies the work. `settled`: the job has an
# outcome. `stopped`: the call received another result. tests/integration/test_states.py checks every statement that
# writes a state against this table.
JobState = Literal["due", "running", "detached", "settled", "stopped"]
JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    "due": frozenset({"running", "settled", "stopped"}),
    "running": frozenset({"due", "detached", "settled", "stopped"}),
    "detached": frozenset({"running", "settled", "stopped"}),
    "settled": frozenset(),
    "stopped": frozenset(),
}
# The states of an open job.
OpenJobState = Literal["due", "running", "detached"]
# The delivery of a report. `steered`: an open turn has received the report. `started`: the report has started a turn.
# `discarded`: the turn of the call was cancelled.
Delivery = Literal["steered", "started", "discarded"]
# The most consecutive turns that reports may start. The last of these turns waits for its background calls.
MOST_STARTED: Final = 10


@dataclass(frozen=True, slots=True)
class JobChild:
    """The turn that does the work of a job of the kind `child`. `cost` is the known cost of its sealed rounds."""

    chat: UUID
    turn: UUID
    status: str
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a call, as the turn of the call sees it. `progress` is the last reported progress, `since` the time
    when the call became a job. If `settled` is True, the job is over. `outcome` is JSON text; None after the call has
    its result.

    The turn does not wait for a job that `reports`, because the call of such a job has a result at once. A report with
    the outcome is delivered to the turn `delivered_to`, perhaps another turn of the branch, after that turn's round
    `delivered_round`: 0 means before the first round, None means not yet applied. `ended` is the kind of the outcome.
    `attempt` counts the runs of the job, for the server only.
    """

    id: UUID
    round: int
    tool_use_id: str
    name: str
    kind: JobKind
    progress: str | None = None
    settled: bool = False
    outcome: str | None = None
    state: OpenJobState = "due"
    since: datetime | None = None
    child: JobChild | None = None
    reports: bool = False
    delivery: Delivery | None = None
    delivered_to: UUID | None = None
    delivered_round: int | None = None
    ended: str | None = None
    attempt: int = field(default=0, compare=False)

    @property
    def key(self) -> CallKey:
        return self.round, self.tool_use_id

    def shown(self) -> Mapping[str, Any]:
        """Returns the job in the form that readers of the turn receive."""
        return {
            "id": self.id,
            "tool_use_id": self.tool_use_id,
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "since": self.since,
            "progress": self.progress,
            "child": None if self.child is None else asdict(self.child),
        }

    def report(self) -> Mapping[str, Any]:
        """Returns a reporting job, with the delivery of its report, in the form that readers of the turn receive."""
        return {
            "job": self.id,
            "tool_use_id": self.tool_use_id,
            "name": self.name,
            "state": "settled" if self.settled else self.state,
            "since": self.since,
            "outcome": self.ended,
            "progress": self.progress,
            "delivery": self.delivery,
            "turn": self.delivered_to,
            "round": self.delivered_round,
        }

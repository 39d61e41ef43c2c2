"""Explains in sentences why an open turn does not progress, and defines the state that the sentences are made from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never
from uuid import UUID

from turnstream.domain.activity import REPORTS, Activity, RunningCall
from turnstream.domain.asks import AskKind
from turnstream.domain.turns import ENDED, Status

_LATE = 2 * REPORTS  # seconds; an older report of a replica is ignored
_QUIET = 2.0  # seconds; a shorter silence is not reported


@dataclass(frozen=True, slots=True)
class OpenAsk:
    name: str
    kind: AskKind
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that has not settled. `replica` is the address of its replica, `seconds` its age. A `detached` job has a
    handle; it runs again in `due` seconds (None: never), and its deadline ends it in `deadline` seconds. `child` is the
    agent's turn that works on the job, and `works` is the state of that turn. If `reports` is true, the turn does not
    wait for the job.
    """

    id: UUID
    name: str
    seconds: float
    replica: str | None = None
    detached: bool = False
    due: float | None = None
    deadline: float | None = None
    child: UUID | None = None
    works: "TurnState | None" = None
    reports: bool = False


@dataclass(frozen=True, slots=True)
class TurnState:
    """The state of a turn, from its rows and from the last report of its replica, which is `reported` seconds old.
    `ahead` counts the turns that were queued before this turn; `behind` is the open turn of its chat that must end
    first. `lease_left` is None if its replica has no row. `claiming` counts the live replicas that claim turns;
    `declined` are the addresses of the live replicas that lack the model or a tool of this turn. `room` is the number
    of free slots of all replicas, or None if it is unknown. `trace` is the id of its trace. Times are in seconds:
    `seconds` is the age of the turn, or its duration after its end; `queued` is its time in the queue.
    """

    id: UUID
    chat: UUID
    owner: str
    status: Status
    seconds: float
    model: str | None = None
    attempt: int = 0
    recoveries: int = 0
    cancel_requested: bool = False
    stop_reason: str | None = None
    error: str | None = None
    replica: str | None = None
    lease_left: float | None = None
    behind: UUID | None = None
    ahead: int = 0
    owner_running: int = 0
    owner_limit: int | None = None
    claiming: int = 1
    room: int | None = None
    queued: float = 0.0
    declined: tuple[str, ...] = ()
    asks: tuple[OpenAsk, ...] = ()
    jobs: tuple[OpenJob, ...] = ()
    calls: tuple[RunningCall, ...] = ()
    activity: Activity | None = None
    reported: float = 0.0
    readers: int = 0
    trace: str | None = None

    @property
    def silent(self) -> float | None:
        """Seconds since the provider sent its last bytes. A silence in the report is assumed to continue after the
        report.
        """
        seen = None if self.activity is None else self.activity.silent
        return seen if seen is None or seen < _QUIET else seen + self.reported

    @property
    def known_calls(self) -> Sequence[RunningCall]:
        """The calls in the report, including calls that started early. If the report has no calls, the calls that the
        rows show as started.
        """
        return self.activity.calls if self.activity is not None and self.activity.calls else self.calls


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """An event in the life of a turn, from its rows."""

    at: datetime
    what: str


def reasons(turn: TurnState) -> list[str]:
    """Returns sentences for the owner of the turn. They contain no data of other owners and no names of machines."""
    return [*_reasons(turn)]


def _reasons(turn: TurnState) -> Iterator[str]:
    if turn.status in ENDED:
        yield f"The turn has ended: {turn.error or turn.stop_reason or turn.status}"
        yield from _not_waited_for(turn)
        return
    if turn.cancel_requested:
        yield "The turn is being cancelled."
    if turn.status == "queued":
        yield from _why_queued(turn)
    elif turn.status == "running":
        yield from _why_running(turn)
    for ask in turn.asks:
        yield f"The turn waits {_for_whom(ask)}, {ago(ask.seconds)} by now."
    for job in turn.jobs:
        if not job.reports:
            yield f"The turn waits for the job {job.id} of the tool {job.name}, {_of_job(job)}."
    yield from _not_waited_for(turn)
    if turn.recoveries:
        yield f"The turn was taken over, after {_times(turn.recoveries, 'interruption')}."


def _not_waited_for(turn: TurnState) -> Iterator[str]:
    for job in turn.jobs:
        if job.reports:
            yield f"The turn does not wait for the job {job.id} of the tool {job.name}, {_of_job(job)}."


def _of_job(job: OpenJob) -> str:
    if job.child is not None and job.works is None:
        return f"on which the turn {job.child} works"
    if job.works is not None:
        reason = next(_reasons(job.works), None)
        why = "" if reason is None else f": {reason.removesuffix('.')}"
        return f"on which the turn {job.child} works, which is {job.works.status}{why}"
    if job.replica is not None:
        return f"which has been running for {ago(job.seconds)}"
    if not job.detached:
        return f"which is due, and no replica has taken it for {ago(job.seconds)}"
    since = f"which has been detached for {ago(job.seconds)}"
    end = "" if job.deadline is None else f", or ended by its deadline in {ago(max(job.deadline, 0))}"
    if job.due is None:
        return f"{since}; it is settled from outside{end}"
    if job.due > 0:
        return f"{since}; it is due in {ago(job.due)}{end}"
    return f"{since}; it is due, and no replica has taken it for {ago(-job.due)}"


def _why_queued(turn: TurnState) -> Iterator[str]:
    if turn.behind is not None:
        yield f"The turn is queued behind the turn {turn.behind} of the same chat, which has not ended."
    elif turn.owner_limit is not None and turn.owner_running >= turn.owner_limit:
        running = _times(turn.owner_running, "turn")
        yield f"{running} of the owner {'runs' if turn.owner_running == 1 else 'run'} already: this is the limit."
    elif not turn.claiming:
        yield f"No replica claims turns: none is alive, or all stop. The turn has waited for {ago(turn.queued)}."
    elif len(turn.declined) >= turn.claiming:
        yield "No live replica has the model and the tools of the turn; it ends if none starts within two minutes."
    else:
        if turn.room == 0:
            yield "All replicas run their maximum of turns."
        if turn.ahead:
            yield f"The turn is queued behind {_times(turn.ahead, 'other turn')}."
        else:
            yield f"The turn is the next in the queue, {ago(turn.queued)} by now; no replica has claimed it yet."


def _why_running(turn: TurnState) -> Iterator[str]:
    if turn.lease_left is None or turn.lease_left < 0:
        yield "The replica of the turn is dead; another one takes over within seconds."
        return
    activity = turn.activity
    if turn.reported > _LATE:
        yield f"The replica of the turn has not reported for {ago(turn.reported)}: it is frozen, overloaded or cut off."
        yield f"Unless the replica renews its lease within {ago(turn.lease_left)}, another one takes the turn over."
        return
    if activity is None:
        yield "The replica of the turn has not reported yet."
        return
    for call in turn.known_calls:
        yield f"The tool {call.name} has been running for {ago(call.seconds + turn.reported)}."
    match activity.stage:
        case "retrying":
            yield f"A call of the model {turn.model} has failed, and is repeated after a pause."
        case "waiting":
            yield f"A call of the model {turn.model} waits for the provider's rate limit."
        case "processing" | "streaming" if turn.silent is not None and turn.silent >= _QUIET:
            yield f"The provider of the model {turn.model} has been silent for {ago(turn.silent)}."
        case "processing" | "streaming":
            yield f"The model {turn.model} is answering."
        case "executing" if not turn.known_calls and not turn.asks:
            yield "The tools have run; the next model call is being prepared."
        case "executing" | None:
            pass
        case _:
            assert_never(activity.stage)


def _for_whom(ask: OpenAsk) -> str:
    match ask.kind:
        case "approval":
            return f"for an approval of {ask.name}"
        case "client":
            return f"for the result of {ask.name}, which the client runs"
        case "elicitation":
            return f"for an answer to a question of {ask.name}"
        case "sign_in":
            return f"for a sign-in to the server of {ask.name}"
        case _:
            assert_never(ask.kind)


def ago(seconds: float) -> str:
    """Formats a duration for people, such as `8 seconds`, `3 minutes`, `2 hours`, `5 days`."""
    for most, unit, size in ((90.0, "second", 1.0), (5_400.0, "minute", 60.0), (129_600.0, "hour", 3_600.0)):
        if seconds < most:
            return _times(round(seconds / size), unit)
    return _times(round(seconds / 86_400), "day")


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

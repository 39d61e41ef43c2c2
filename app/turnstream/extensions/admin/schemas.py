"""Response models of the calls for operators."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.events import AccessEndedNotice
from turnstream.domain.turns import Status
from turnstream.libraries.usage_sums import UsageFigures


class ReplicaOut(BaseModel):
    id: Annotated[UUID, Field(description="of the process: one that starts again has another")]
    address: str
    since: datetime
    state: Annotated[
        Literal["alive", "draining", "gone"],
        Field(
            description="`draining`: it takes no turns any more; `gone`: others take its turns over when its lease ends"
        ),
    ]
    lease_seconds: Annotated[float, Field(description="left until it must renew its lease; negative where it has not")]
    running: Annotated[int, Field(description="turns that it runs")]


class OpenTurnOut(BaseModel):
    id: UUID
    chat: UUID
    owner: str
    status: Status
    model: str | None
    seconds: Annotated[float, Field(description="its age")]
    attempt: int
    replica: Annotated[str | None, Field(description="the address of the one that runs it")]
    readers: Annotated[int, Field(description="streams that show the turn, on all replicas")]
    reasons: Annotated[list[str], Field(description="why it has not ended, in sentences")]
    stopping: Annotated[bool, Field(description="its cancellation was requested")]
    trace: Annotated[str | None, Field(description="the id of its trace, where there are traces")]


class JobCountsOut(BaseModel):
    """The background calls, counted by state."""

    due: int
    running: int
    detached: Annotated[int, Field(description="something outside of the replicas works on them")]
    overdue: Annotated[float, Field(description="seconds that the longest has no runner, or is behind its deadline")]


class NowOut(BaseModel):
    """The running and waiting work of all replicas."""

    at: datetime
    replicas: list[ReplicaOut]
    counts: Annotated[dict[str, int], Field(description="of all open turns, by status")]
    oldest_queued_seconds: Annotated[float, Field(description="of turns that may be claimed; 0 where there is none")]
    jobs: JobCountsOut
    turns: Annotated[list[OpenTurnOut], Field(description="of each status those that are open for longest, up to 50")]


class MinuteOut(BaseModel):
    at: datetime
    calls: Annotated[int, Field(description="model calls that have ended")]
    output_tokens: int
    cost: float | None
    first_text_median: Annotated[float | None, Field(description="seconds from a model call to its first text")]
    first_text_slow: Annotated[float | None, Field(description="the same, of the slowest twentieth")]
    failed: Annotated[int, Field(description="turns that ended as failed")]


class ModelFiguresOut(BaseModel):
    provider: Annotated[str | None, Field(description="null where no provider here has the model any more")]
    model: str
    calls: Annotated[int, Field(description="that were looked at: up to 100 of each minute")]
    cut_off: Annotated[int, Field(description="of these, replies that broke off")]
    first_text_median: float | None
    first_text_slow: float | None


class FailuresOut(BaseModel):
    provider: str | None
    model: str
    type: Annotated[str, Field(description="`error.type` of the turns")]
    turns: int
    last: datetime


class ToolFiguresOut(BaseModel):
    name: str
    calls: Annotated[int, Field(description="in the turns that were looked at")]
    running: Annotated[int, Field(description="of these, calls that have not ended")]
    median: Annotated[float, Field(description="seconds")]
    slowest: Annotated[float, Field(description="seconds")]


class HourOut(BaseModel):
    """The figures of the last hour, for all replicas, from rows."""

    until: datetime
    minutes: Annotated[list[MinuteOut], Field(description="oldest first; those in which nothing ended are left out")]
    models: Annotated[list[ModelFiguresOut], Field(description="most calls first")]
    failures: Annotated[list[FailuresOut], Field(description="most turns first; of the newest 1000 that failed")]
    tools: Annotated[list[ToolFiguresOut], Field(description="slowest first, up to 20")]


class SpenderOut(UsageFigures):
    name: Annotated[str, Field(description="of the owner, or of the model")]


class SpendOut(BaseModel):
    """Today's spending (UTC), from the ledger."""

    day: date
    total: UsageFigures
    owners: Annotated[list[SpenderOut], Field(description="dearest first, up to 10")]
    models: Annotated[list[SpenderOut], Field(description="dearest first, up to 10")]


class OverviewOut(BaseModel):
    now: NowOut
    hour: HourOut
    spend: SpendOut


class ActedTurnOut(BaseModel):
    turn: UUID
    chat: UUID
    owner: str
    status: Annotated[Status, Field(description="after the act; a turn that runs has not stopped yet")]


class NowEvent(NowOut):
    """The replicas and the open turns; sent every two seconds."""


class HourEvent(HourOut):
    """The figures of the last hour; sent every ten seconds."""


class SpendEvent(SpendOut):
    """Today's spending; sent after a change, once a minute at most."""


OVERVIEW_EVENTS: Mapping[str, type[BaseModel]] = {
    "now": NowEvent,
    "hour": HourEvent,
    "spend": SpendEvent,
    "access_ended": AccessEndedNotice,
}

"""Bodies of requests and answers about schedules."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.api.schemas.fields import Body, Storable, Title
from turnstream.api.schemas.requests import NewTurn
from turnstream.domain.chats import OnBusy


class ScheduledTurn(NewTurn):
    """The message that each run posts, with its options. It follows the newest turn of the chat."""

    parent_id: None = None
    on_busy: OnBusy = "enqueue"


class ScheduleIn(Body):
    """Either `cron` or `every` is set."""

    name: Title
    chat: Annotated[UUID | None, Field(description="the chat of all runs; null: each run has a new one")] = None
    request: ScheduledTurn
    cron: Annotated[Storable | None, Field(max_length=200, description="five fields, such as 30 7 * * 1-5")] = None
    every: Annotated[float | None, Field(gt=0, le=366 * 86_400, description="seconds between two runs")] = None
    zone: Annotated[Storable, Field(max_length=100, description="the time zone of `cron`")] = "UTC"
    missed: Annotated[
        Literal["run_once", "skip", "report"],
        Field(description="ticks that are later than `grace`: one run for all, none, or one entry among the runs"),
    ] = "run_once"
    grace: Annotated[float, Field(ge=1, le=7 * 86_400, description="seconds by which a tick may be late")] = 60.0
    paused: bool = False


class ScheduleRunOut(BaseModel):
    """A tick and its result. `missed` is the number of missed ticks that the run replaces."""

    tick: datetime
    state: Literal["pending", "started", "ended", "failed", "missed"]
    turn: UUID | None
    chat: UUID | None
    missed: int
    error: str | None


class ScheduleOut(BaseModel):
    """`paused` is the cause of the pause: a person, or failures in a row."""

    id: UUID
    name: str
    chat: UUID | None
    request: dict[str, Any]
    cron: str | None
    every: float | None
    zone: str
    missed: Literal["run_once", "skip", "report"]
    grace: float
    next_at: datetime
    paused: Literal["person", "failures"] | None
    failures: int
    created_at: datetime
    last_run: ScheduleRunOut | None


class ScheduleList(BaseModel):
    schedules: list[ScheduleOut]


class ScheduleRuns(BaseModel):
    runs: list[ScheduleRunOut]


class TriggerIn(Body):
    """A trigger posts `request` for each signed message, followed by the body of the message."""

    name: Title
    chat: Annotated[UUID | None, Field(description="the chat of all runs; null: each run has a new one")] = None
    request: ScheduledTurn
    body: Annotated[
        Literal["data", "message"],
        Field(description="whether the model gets the body of a message as data, or as the words of the user"),
    ] = "data"
    per_minute: Annotated[int, Field(ge=1, le=600, description="messages in a minute")] = 60
    paused: bool = False


class TriggerSecretIn(Body):
    keep_seconds: Annotated[
        float, Field(ge=0, le=30 * 86_400, description="seconds for which the secrets before it stay valid")
    ] = 86_400.0


class TriggerSecretOut(BaseModel):
    """A secret without its value. A replaced secret is valid until `until`."""

    id: str
    until: datetime | None


class TriggerOut(BaseModel):
    """`path` receives the messages. `paused` is the cause of the pause: a person, or failures in a row."""

    id: UUID
    name: str
    path: str
    chat: UUID | None
    request: dict[str, Any]
    body: Literal["data", "message"]
    per_minute: int
    secrets: list[TriggerSecretOut]
    paused: Literal["person", "failures"] | None
    failures: int
    created_at: datetime
    last_run: ScheduleRunOut | None


class NewTriggerOut(TriggerOut):
    """`secret` is shown only once. Messages are signed with it by the scheme of Standard Webhooks."""

    secret: str


class TriggerList(BaseModel):
    triggers: list[TriggerOut]


class TriggeredTurnOut(BaseModel):
    """The turn that a message started. A repeated message returns the turn of the first message."""

    turn: UUID
    chat: UUID

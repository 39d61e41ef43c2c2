"""The settings of schedules."""

from pydantic import Field

from turnstream.config import Section


class ScheduleSettings(Section):
    schedule_interval: float = Field(60, ge=1, description="shortest pause between two runs of a schedule, in seconds")
    schedules_per_owner: int = Field(100, ge=0, description="schedules and triggers of an owner")
    schedule_failures: int = Field(
        5, ge=1, description="failed runs in a row after which a schedule or a trigger is paused"
    )
    retain_schedule_runs_days: float = Field(
        30, gt=0, le=36_500, description="days for which runs of schedules are kept"
    )
    trigger_body_bytes: int = Field(65_536, ge=1, le=1_000_000, description="largest body of a message to a trigger")
    trigger_messages: bool = Field(False, description="whether messages of triggers may be words of the user")

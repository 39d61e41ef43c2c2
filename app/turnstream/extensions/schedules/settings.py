"""The settings of schedules."""

from pydantic import Field

from turnstream.config import Section


class ScheduleSettings(Section):
    schedule_interval: float = Field(60, ge=1, description="shortest pause between two runs of a schedule, in seconds")
    schedules_per_owner: int = Field(100, ge=0, description="how many schedules an owner may have")
    schedule_failures: int = Field(5, ge=1, description="failed runs in a row after which a schedule is paused")
    retain_schedule_runs_days: float = Field(30, gt=0, description="days for which the runs of schedules are kept")

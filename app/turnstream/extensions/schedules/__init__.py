"""Schedules and triggers: messages that the server posts at set times, or when it receives a signed message."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work
from turnstream.extensions.schedules.settings import ScheduleSettings

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.schedules.calls import CALLS, TRIGGERS

    return [CALLS, TRIGGERS]


def _work(context: Context) -> Work:
    from turnstream.engine.upkeep.sweeps import HOURS, Sweep
    from turnstream.extensions.schedules.runner import ScheduleRunner
    from turnstream.extensions.schedules.store import OLD_RUNS, DueSchedules
    from turnstream.storage.retention import aged_rows

    settings = context.settings.section(ScheduleSettings)
    runner = ScheduleRunner(DueSchedules(context.database), settings.schedule_failures)
    old = partial(aged_rows, context.database, OLD_RUNS, settings.retain_schedule_runs_days)
    return Work(state=settings, sweeps=[Sweep("old runs of schedules", HOURS, old)], serving=[runner.run])


EXTENSION = Extension(
    "schedules",
    "messages that the server posts at times, or for signed messages",
    settings=ScheduleSettings,
    calls=_calls,
    work=_work,
)

"""Background calls, which run apart from their turn. While the turn waits for them, it needs no memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section
from turnstream.extension import Context, Extension, Task, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.engine.text_checks import TextChecks


class JobSettings(Section):
    parallel_jobs: int = Field(100, ge=1, description="calls of background tools that this replica runs at once")


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.jobs.calls import RESULTS, STOPS

    return [STOPS, RESULTS]


def _work(context: Context) -> Work:
    def runner(checks: "TextChecks") -> Task:
        from turnstream.extensions.jobs.runner import runner_of

        return runner_of(context, context.settings.section(JobSettings).parallel_jobs, checks).run

    return Work(runners=[runner])


EXTENSION = Extension(
    "jobs",
    "calls of tools in the background",
    settings=JobSettings,
    calls=_calls,
    work=_work,
    tool_policies=["background"],
)

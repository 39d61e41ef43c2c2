"""The runner of jobs for a replica in this process."""

from turnstream.domain.plans import Plans
from turnstream.engine.text_checks import TextChecks
from turnstream.extensions.jobs.report_rows import JobReports
from turnstream.extensions.jobs.reports import ReportDelivery
from turnstream.extensions.jobs.rows import Jobs
from turnstream.extensions.jobs.runner import JobRunner, ToolJobs
from turnstream.extensions.jobs.stopped_rows import StoppedJobs
from turnstream.extensions.jobs.stops import StopDelivery
from turnstream.kit.signals import Signals
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.runs.queue import Queue
from turnstream.tools.toolset import Toolset


class KillableRunner(JobRunner):
    """A runner that stops without its last writes once it is `killed`, so that its rows stay as they are."""

    killed = False

    async def _drain(self) -> None:
        if not self.killed:
            await super()._drain()


def runner_for(
    queue: Queue, toolset: Toolset, plans: Plans, checks: TextChecks, signals: Signals, most: int, poll_interval: float
) -> KillableRunner:
    database = queue._database
    kind = ToolJobs(toolset, Uploads(database), plans, checks)
    delivery = ReportDelivery(JobReports(database), toolset, signals.changed.send, plans, checks)
    stops = StopDelivery(StoppedJobs(database), toolset)
    runner = KillableRunner(Jobs(database, queue.replica), kind, delivery, stops, most, poll_interval, 0.0)
    runner.follow(signals)
    return runner

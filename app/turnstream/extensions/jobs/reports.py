"""Delivers reports: the outcomes of jobs for which their turn did not wait."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from turnstream.domain.blocks import Block
from turnstream.domain.errors import StorageUnavailable
from turnstream.domain.kinds import REPORT
from turnstream.domain.plans import Plans
from turnstream.domain.results import result_as_text
from turnstream.engine.text_checks import NO_CHECKS, TextChecks, TurnBlocked
from turnstream.engine.tool_gate import UNKNOWN_END, JobEnd, end_of
from turnstream.extensions.jobs.report_rows import JobReport, JobReports
from turnstream.libraries.extension_metrics import REPORTS_DELIVERED
from turnstream.storage.rows import to_json
from turnstream.tools.tool import RETURNED_NOTHING, Outcome
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 20  # maximum number of reports that one read returns
_FILE: Final = "[A file of the type {type} is not shown here.]"


class ReportDelivery:
    """Delivers reports to turns. `notify` informs the readers of an owner's chat. `checks` apply to the outcomes, as
    they do in a turn.
    """

    def __init__(
        self,
        reports: JobReports,
        toolset: Toolset,
        notify: Callable[[str, UUID], None],
        plans: Plans,
        checks: TextChecks = NO_CHECKS,
    ) -> None:
        self._reports = reports
        self._toolset = toolset
        self._notify = notify
        self._plans = plans
        self._checks = checks
        # jobs whose report failed because of a bug: another replica may deliver it, or this one after a restart
        self._failed: set[UUID] = set()

    async def deliver(self) -> bool:
        """Delivers the reports that wait, and returns whether there were any. Skips reports that another replica is
        delivering.
        """
        discarded = await self._reports.discard()
        self._note_discarded(discarded, "cancelled")
        reports = await self._reports.undelivered(_AT_ONCE, self._failed)
        for report in reports:
            try:
                delivered = await self._reports.deliver(report, *await self._block_of(report))
            except StorageUnavailable:
                raise
            except Exception:  # one report must not stop the runner of all jobs
                self._failed.add(report.id)
                log.exception("report.failed", job=str(report.id))
                continue
            if delivered is None:
                continue
            if delivered.turn is None:
                self._note_discarded([report.id], "deleted")
                continue
            REPORTS_DELIVERED.labels(delivered.delivery).inc()
            log.info("report.delivered", job=str(report.id), delivery=delivered.delivery, turn=str(delivered.turn))
            self._notify(report.owner, report.chat)
        return bool(discarded or reports)

    async def note_deleted(self, jobs: Collection[UUID]) -> None:
        """Logs which of `jobs` were deleted with their turns. Such a job has no row any more."""
        self._note_discarded(await self._reports.deleted(jobs), "deleted")

    def _note_discarded(self, jobs: Collection[UUID], reason: str) -> None:
        for job in jobs:
            REPORTS_DELIVERED.labels("discarded").inc()
            log.info("report.discarded", job=str(job), reason=reason)

    async def _block_of(self, report: JobReport) -> tuple[Block, str | None]:
        """Returns the report as a block for a turn, and the job's outcome if guards have changed it. The `data` of the
        block names the call that the report is about.
        """
        end = UNKNOWN_END if report.outcome is None else end_of(report.outcome)
        round, call = report.call
        outcome = end.outcome
        if end.from_elsewhere:
            outcome = self._toolset.fitted(report.name, outcome, call, report.request.tools)
        checked = await self._checked(report, outcome)
        changed = None if checked is outcome else to_json(JobEnd(checked, end.state))
        outcome = checked
        block = result_as_text(Block(0, 0, 0, REPORT, outcome.text, outcome.layout), _FILE)
        about = {
            "type": REPORT,
            "job": report.id,
            "turn": report.turn,
            "round": round,
            "tool_use_id": call,
            "name": report.name,
            "kind": outcome.kind,
            "is_error": outcome.is_error,
            "data": outcome.data,
        }
        return replace(block, text=block.text.strip() or RETURNED_NOTHING, data=to_json(about)), changed

    async def _checked(self, report: JobReport, outcome: Outcome) -> Outcome:
        """Returns the outcome after the guards have checked it. If their verdict is `end`, the outcome is withheld, but
        the turn that receives the report does not end.
        """
        plan = self._plans.of(report.owner, report.request.plan).name
        check = self._checks.of(report.owner, plan).check_result
        try:
            return outcome if check is None else await check(outcome, None, report.name)
        except TurnBlocked as blocked:
            return Outcome(f"The result of this call was withheld: {blocked}", is_error=True, kind="refused")

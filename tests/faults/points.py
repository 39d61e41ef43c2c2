"""Kill points: places in a server's work, counted by name. The process kills itself at one of them."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from turnstream.domain.asks import Steer
from turnstream.domain.blocks import Block
from turnstream.domain.limits import FamilyUse
from turnstream.extensions.jobs import rows as jobs
from turnstream.extensions.jobs.report_rows import DELIVER_REPORT, DeliveredReport, JobReport, JobReports
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.runs import journal, queue, record

# All commits while a turn runs, except for leases.
OTHERS = {
    "APPEND_TICK",
    "CHECKPOINT",
    "STORE_TEXT",
    "CLAIM_TURNS",
    "TAKE_OVER",
    "CHECKPOINT_JOB",
    "SETTLE_JOB",
    "DETACH_JOB",
    "DETACH_TO_ASK",
    "ASK_FOR_JOB",
}
WRITES = {
    statement: name.lower()
    for module in (record, journal, queue, jobs)
    for name, statement in vars(module).items()
    if isinstance(statement, Statement) and name in {*vars(record)} | OTHERS
}
# These statements run inside transactions, whose commit is a kill point of its own.
IN_TRANSACTIONS = {DELIVER_REPORT: "deliver_report", record.APPLY_STEERS: "apply_steers"}


class Points:
    """Counts the kill points. `die_at` is the name of a point and how often it has been reached, such as `after
    seal_round 2`. Every point is passed to `seen` first.
    """

    def __init__(self, die_at: str | None, seen: Callable[[str], None]) -> None:
        self._die_at = die_at
        self._seen = seen
        self._counts: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        self._counts[name] += 1
        point = f"{name} {self._counts[name]}"
        self._seen(point)
        if point == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_commits(self, written: Callable[[Statement, dict[str, Any]], None]) -> None:
        """Gives every later write of this process a kill point before and after it. `written` is called between the
        write and the second point.
        """
        rows = Database.rows

        async def watched(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
            # The journal may or may not have a tick without text, so such a tick is no kill point.
            if statement not in WRITES or values.get("pieces") == "[]":
                return await rows(database, statement, **values)
            self.reach(f"before {WRITES[statement]}")
            result = await rows(database, statement, **values)
            written(statement, values)
            self.reach(f"after {WRITES[statement]}")
            return result

        Database.rows = watched  # type: ignore[method-assign, assignment]
        take = Accounts.take_of_family

        async def watched_take(accounts: Accounts, *request: Any) -> FamilyUse:
            self.reach("before take_of_family")
            used = await take(accounts, *request)
            self.reach("after take_of_family")
            return used

        Accounts.take_of_family = watched_take  # type: ignore[method-assign, assignment]

    def watch_reports(self) -> None:
        """Makes each step of a report's delivery a kill point from now on, inside and after its transactions."""
        rows, deliver, apply = Transaction.rows, JobReports.deliver, record.Records.apply_steers

        async def watched(connection: Transaction, statement: Statement, **values: Any) -> Sequence[Row]:
            if statement not in IN_TRANSACTIONS:
                return await rows(connection, statement, **values)
            self.reach(f"before {IN_TRANSACTIONS[statement]}")
            result = await rows(connection, statement, **values)
            self.reach(f"after {IN_TRANSACTIONS[statement]}")
            return result

        async def delivered(reports: JobReports, report: JobReport, *given: Any) -> DeliveredReport | None:
            result = await deliver(reports, report, *given)
            self.reach("report delivered")
            return result

        async def applied(records: record.Records, blocks: Sequence[Block], steers: Sequence[Steer]) -> bool:
            result = await apply(records, blocks, steers)
            self.reach("report applied")
            return result

        Transaction.rows, JobReports.deliver = watched, delivered  # type: ignore[method-assign, assignment]
        record.Records.apply_steers = applied  # type: ignore[method-assign, assignment]

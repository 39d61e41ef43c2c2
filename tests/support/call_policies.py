"""The call policies of extensions, for replicas of the harness."""

from collections.abc import Sequence

from turnstream.engine.call_policies import CallPolicy
from turnstream.engine.worker import WorkerPolicy
from turnstream.extensions.tool_results.cache import CachePolicy
from turnstream.extensions.tool_results.rows import ToolCache
from turnstream.extensions.tool_results.summaries import SummaryPolicy
from turnstream.libraries.side_calls import SideCalls
from turnstream.storage.database import Database
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.charges import Charges
from turnstream.tools.toolset import Toolset


def policies_for(database: Database, toolset: Toolset, policy: WorkerPolicy) -> Sequence[CallPolicy]:
    calls = SideCalls(Charges(database), Accounts(database), policy.plans, policy.model)
    return [SummaryPolicy(toolset, calls), CachePolicy(toolset, ToolCache(database))]

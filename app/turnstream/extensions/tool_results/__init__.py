"""Results of tools: a cache, summaries of long results, and a tool that reads the rest of a truncated result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.engine.upkeep.sweeps import Sweep
    from turnstream.storage.database import Database
    from turnstream.tools.tool import Tool


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.tool_results.whole import CALLS

    return [CALLS]


def _tools(settings: Settings, database: "Database") -> "Sequence[Tool]":
    from turnstream.extensions.tool_results.read_result import result_tools
    from turnstream.extensions.tool_results.results import ToolResults

    return result_tools(ToolResults(database), settings.max_result_chars)


def sweeps_of(_: Settings, database: "Database") -> "list[Sweep]":
    from turnstream.engine.upkeep.sweeps import HOURS, Sweep
    from turnstream.extensions.tool_results.rows import ToolCache

    return [Sweep("tool cache", HOURS / 6, ToolCache(database).sweep)]


def _work(context: Context) -> Work:
    from turnstream.extensions.tool_results.cache import CachePolicy
    from turnstream.extensions.tool_results.rows import ToolCache
    from turnstream.extensions.tool_results.summaries import SummaryPolicy
    from turnstream.libraries.side_calls import SideCalls

    return Work(
        call_policies=[
            SummaryPolicy(context.toolset, SideCalls.of(context)),
            CachePolicy(context.toolset, ToolCache(context.database)),
        ],
        sweeps=sweeps_of(context.settings, context.database),
    )


EXTENSION = Extension(
    "tool_results",
    "a cache of the results of tools, summaries of long ones, and a tool that reads on in them",
    calls=_calls,
    tools=_tools,
    work=_work,
    tool_policies=["cache_seconds", "summarise"],
)

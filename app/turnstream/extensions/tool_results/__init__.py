"""Results of tools: a tool that reads on in a result that was cut."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.storage.database import Database
    from turnstream.tools.tool import Tool


def _tools(settings: Settings, database: "Database") -> "Sequence[Tool]":
    from turnstream.extensions.tool_results.read_result import result_tools
    from turnstream.storage.chats.turns import ToolResults

    return result_tools(ToolResults(database), settings.max_result_chars)


EXTENSION = Extension("tool_results", "a tool that reads on in results that were cut", tools=_tools)

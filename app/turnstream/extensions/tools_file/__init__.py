"""Tools and policies that a file declares, and the tools of all kinds of sources."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension
from turnstream.libraries.tools_file_settings import ToolsFileSettings

if TYPE_CHECKING:
    from turnstream.tools.sources import DeclaredTools


def _declared_tools(
    settings: Settings, extensions: Sequence[Extension], environment: Mapping[str, str]
) -> "DeclaredTools":
    from turnstream.libraries.tool_sources.kinds import declared_tools, source_kinds

    file = settings.section(ToolsFileSettings).tools_file
    return declared_tools(file, source_kinds(settings, extensions), environment)


EXTENSION = Extension(
    "tools_file",
    "tools and policies in a file, and all kinds of tool sources",
    settings=ToolsFileSettings,
    declared_tools=_declared_tools,
)

"""Loads the tools and policies that a file declares, and the tools of all kinds of sources."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension, installed, refused
from turnstream.libraries.tools_file_settings import ToolsFileSettings

if TYPE_CHECKING:
    from turnstream.tools.sources import DeclaredTools


def _declared_tools(
    settings: Settings, extensions: Sequence[Extension], environment: Mapping[str, str]
) -> "DeclaredTools":
    from turnstream.libraries.tool_sources.kinds import declared_tools, source_kinds

    file = settings.section(ToolsFileSettings).tools_file
    declared = declared_tools(file, source_kinds(settings, extensions), environment)
    if all(extension.name != "mcp" for extension in extensions):
        _check_no_sign_ins(declared)
    return declared


def _check_no_sign_ins(declared: "DeclaredTools") -> None:
    """Raises ConfigError if tools have `auth`, because the extension for sign-ins is missing."""
    from turnstream.libraries.outgoing.owner_tokens import accesses_of

    for access in accesses_of(tool for loaded in declared.loaded for tool in loaded.tools):
        raise refused(f"`auth` of tools of {access.service.name}", installed()["mcp"])


EXTENSION = Extension(
    "tools_file",
    "tools and policies in a file, and all kinds of tool sources",
    settings=ToolsFileSettings,
    declared_tools=_declared_tools,
)

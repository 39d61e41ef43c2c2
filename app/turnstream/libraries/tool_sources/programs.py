"""Opens the toolset for a program, or for the server that a program embeds."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Literal

from turnstream.config import Settings
from turnstream.extension import selected
from turnstream.libraries.tool_sources.kinds import SourceKind, declared_tools, source_kinds
from turnstream.setup import toolset
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

# For each field of ToolSettings, the name of the setting.
SETTINGS = {
    "file": "tools_file",
    "reference": "toolset",
    "max_parallel": "parallel_tools",
    "max_request_tools": "parallel_tools",
    "max_result_chars": "max_result_chars",
    "max_file_bytes": "max_upload_bytes",
    "signing_secret": "signing_secret",
    "allowed": "http_tools_allow",
    "request_tools": "request_tools",
    "request_tools_allowed": "request_tools_allow",
    "request_tools_timeout": "request_tools_timeout",
    "tool_secrets": "tool_secrets",
}


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of tools, for a program. `environment` contains the variables that `file` and factories may use."""

    file: Path | None = None
    reference: str | None = None
    signing_secret: str | None = None
    allowed: str | None = None
    request_tools: Literal["public", "listed", "off"] = "public"
    request_tools_allowed: str | None = None
    request_tools_timeout: float = 60.0
    tool_secrets: str | None = None
    max_parallel: int = 16
    max_request_tools: int = 16
    max_result_chars: int = 100_000
    max_file_bytes: int = 5_000_000
    environment: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def open_toolset(
    own: Iterable[Tool],
    settings: ToolSettings,
    outputs: Outputs | None = None,
    *,
    connect_mcp: bool = True,
    kinds: Sequence[SourceKind] | None = None,
) -> AsyncIterator[Toolset]:
    """Opens the toolset. If `connect_mcp` is true, it also connects the sources. By default, `kinds` are the source
    kinds of the extensions. Raises ConfigError with a sentence for each invalid setting.
    """
    kinds = _installed_kinds(settings) if kinds is None else kinds
    limits = toolset.ToolLimits(
        settings.max_parallel, settings.max_request_tools, settings.max_result_chars, settings.max_file_bytes
    )
    declare = partial(declared_tools, settings.file, kinds, settings.environment)
    async with toolset.open_toolset(
        own, settings.reference, declare, limits, settings.environment, outputs, connect=connect_mcp
    ) as opened:
        yield opened


def _installed_kinds(given: ToolSettings) -> Sequence[SourceKind]:
    """Returns the source kinds of the extensions that the settings of a program select."""
    defaults = {each.name: each.default for each in fields(given)}
    values = {
        setting: getattr(given, name) for name, setting in SETTINGS.items() if getattr(given, name) != defaults[name]
    }
    settings = Settings(_env_file=None, **values)
    return source_kinds(settings, selected(settings))

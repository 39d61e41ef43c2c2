"""The setting of the tools file. Several extensions read the file."""

from pathlib import Path

from pydantic import Field

from turnstream.config import Section


class ToolsFileSettings(Section):
    tools_file: Path | None = Field(None, description="TOML file that declares HTTP tools, MCP servers and policies")

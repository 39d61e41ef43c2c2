"""If the tools file names an MCP server and the extra's package is missing, the start fails."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from turnstream.domain.errors import ConfigError
from turnstream.libraries import extras
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "mcp" else importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "find_spec", find_spec)


async def opened(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    async with open_toolset([], ToolSettings(file=file)):
        pass


async def test_a_server_in_the_tools_file_stops_the_start_with_the_command_that_installs_the_package(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tools.toml"
    with pytest.raises(ConfigError) as refused:
        await opened(file, '[mcp.wiki]\nurl = "https://wiki.example"\n')
    assert str(refused.value) == f"{file}: [mcp.wiki] needs the package mcp: pip install 'turnstream[mcp]'."


async def test_a_tools_file_without_a_server_needs_no_package(tmp_path: Path) -> None:
    await opened(tmp_path / "tools.toml", "")

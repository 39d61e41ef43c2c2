"""Tools that the settings name, in the toolset of a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.main import running
from turnstream.scripted import ScriptedProvider
from turnstream.setup.parts import Given
from turnstream.tools.tool import Tool, ToolContext, tool

CONTEXT = ToolContext("ada", UUID(int=1), UUID(int=2), "toolu_1", "key-1", progress=lambda words: None)
FILE = """
[policy.price]
timeout = 3
"""


@tool(read_only=True)
async def price(article: str) -> str:
    """What an article costs."""
    return f"{article}: 3 kr"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.toml"
    path.write_text(FILE)
    return path


async def opened(own: Sequence[Tool], settings: ToolSettings) -> None:
    async with open_toolset(own, settings):
        pass


async def test_a_tool_that_a_setting_names_has_the_policy_of_the_file(file: Path) -> None:
    settings = ToolSettings(file=file, reference=f"{__name__}:price")
    async with open_toolset([], settings) as toolset:
        assert toolset.names == ("price",)
        assert toolset.policy("price").timeout == 3
        assert (await toolset.run("price", '{"article": "tea"}', CONTEXT)).text == "tea: 3 kr"


@pytest.mark.extensions("documents")
async def test_a_server_has_the_tools_of_its_settings(file: Path, database_url: str) -> None:
    values: dict[str, Any] = {
        "database_url": database_url,
        "model": "scripted",
        "port": 0,
        "tools_file": file,
        "toolset": f"{__name__}:price",
    }
    models = Models([ProviderModels(ScriptedProvider([]), ["scripted"])])
    async with running(Settings(_env_file=None, **values), Given(models)) as services:
        assert {"doc_tree", "doc_view", "doc_search", "price"} <= set(services.resolver.toolset.names)


def test_a_variable_may_be_in_the_env_file_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("WEATHER_KEY=tok-1\nZONE=Europe/Oslo\nEMPTY\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEATHER_KEY", "tok-2")
    found = read_environment()
    assert (found["WEATHER_KEY"], found["ZONE"], "EMPTY" in found) == ("tok-2", "Europe/Oslo", False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ToolSettings(reference=f"{__name__}:price"), "two tools have the name price"),
        (
            ToolSettings(reference="no_such_module:tools"),
            "^TURNSTREAM_TOOLSET: no_such_module:tools cannot be imported",
        ),
    ],
)
async def test_a_setting_that_is_wrong_stops_the_start(settings: ToolSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await opened([price], settings)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "policy.price",
            "policy.prize",
            r"tools\.toml: \[policy\.prize\] there is no tool of this name; did you mean price\?$",
        ),
        ("timeout = 3", 'fallback = "gone"', "price has the fallback gone, which is not in the toolset"),
    ],
)
async def test_a_file_that_is_wrong_stops_the_start(file: Path, before: str, after: str, words: str) -> None:
    assert before in FILE
    file.write_text(FILE.replace(before, after))
    with pytest.raises(ConfigError, match=words):
        await opened([price], ToolSettings(file=file))

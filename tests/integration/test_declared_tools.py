"""Tools that settings name, in the one toolset of a server."""

import asyncio
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.scripted import ScriptedProvider
from turnstream.main import running
from turnstream.setup.parts import Given
from turnstream.setup.toolset import ToolSettings, open_toolset
from turnstream.tools.tool import Tool, ToolContext, tool

ROOT = Path(__file__).parents[2]
CONTEXT = ToolContext("ada", UUID(int=1), UUID(int=2), "toolu_1", "key-1", progress=lambda words: None)
FILE = f"""
[http.weather]
url = "https://weather.example/now"
description = "How it is outside."
input_schema = {{ type = "object" }}
headers = {{ x-key = "$WEATHER_KEY" }}

[mcp.time]
command = "{sys.executable}"
args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]

[policy.price]
timeout = 3

[policy.time__convert_time]
timeout = 4
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


def section(heading: str, kind: str) -> list[str]:
    """The blocks of one kind below a heading of the documentation."""
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    part = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{kind}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


async def opened(own: Sequence[Tool], settings: ToolSettings) -> None:
    async with open_toolset(own, settings):
        pass


async def test_tools_of_every_kind_are_in_one_toolset(file: Path) -> None:
    settings = ToolSettings(file=file, reference=f"{__name__}:price", environment={"WEATHER_KEY": "tok-1"})
    async with open_toolset([], settings) as toolset:
        # On a loaded machine the server may start after the five seconds that the start of a toolset waits for it.
        while "time__convert_time" not in toolset.names:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert toolset.names == ("price", "weather", "time__get_current_time", "time__convert_time")
        assert toolset.policy("price").timeout == 3
        assert toolset.policy("time__convert_time").timeout == 4
        assert (await toolset.run("price", '{"article": "tea"}', CONTEXT)).text == "tea: 3 kr"
        outcome = await toolset.run("time__get_current_time", '{"timezone": "Europe/Oslo"}', CONTEXT)
        assert "Europe/Oslo" in outcome.text


async def test_a_server_has_the_tools_of_its_settings(
    file: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_KEY", "tok-1")
    values: dict[str, Any] = {
        "database_url": database_url,
        "model": "scripted",
        "port": 0,
        "tools_file": file,
        "toolset": f"{__name__}:price",
        "http_tools_allow": "127.0.0.1, 10.0.0.0/8",
        "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }
    models = Models([ProviderModels(ScriptedProvider([]), ["scripted"])])
    async with running(Settings(_env_file=None, **values), Given(models)) as services:
        expected = {"doc_tree", "doc_view", "doc_search", "price", "weather", "time__convert_time"}
        while not expected <= set(services.resolver.toolset.names):  # noqa: ASYNC110, as above
            await asyncio.sleep(0.05)


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
        (
            ToolSettings(allowed="10.0.0.0/33"),
            "^TURNSTREAM_HTTP_TOOLS_ALLOW: '10.0.0.0/33' must be an address",
        ),
        (ToolSettings(signing_secret="not base64!"), "^TURNSTREAM_SIGNING_SECRET: a signing secret must be base64"),
        (ToolSettings(reference=f"{__name__}:price"), "two tools are called price"),
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
        ("https:", "http:", r"tools\.toml: \[http\.weather\] the URL must begin with https://$"),
        ("$WEATHER_KEY", "a\\nb", r"tools\.toml: \[http\.weather\] the value of the header x-key"),
        (
            "policy.price",
            "policy.prize",
            r"tools\.toml: \[policy\.prize\] there is no tool of this name; did you mean price\?$",
        ),
        ('{ type = "object" }', '{ type = "list" }', r"tools\.toml: \[http\.weather\] the input schema must be"),
        ("timeout = 3", 'fallback = "gone"', "price has the fallback gone, which is not in the toolset"),
        ("[mcp.time]", '[mcp.clock]\nurl = "https://a.example"\nprefix = "time"\n[mcp.time]', "two MCP servers"),
    ],
)
async def test_a_file_that_is_wrong_stops_the_start(file: Path, before: str, after: str, words: str) -> None:
    assert before in FILE
    file.write_text(FILE.replace(before, after))
    with pytest.raises(ConfigError, match=words):
        await opened([price], ToolSettings(file=file, environment={"WEATHER_KEY": "tok-1"}))


# --- the documentation -----------------------------------------------------------------------------------------------


def test_the_example_of_an_http_tool_prints_the_documented_text(tmp_path: Path) -> None:
    (declared,), (code,), (printed,) = (section("HTTP tools", kind) for kind in ("toml", "python", "text"))
    (tmp_path / "tools.toml").write_text(declared, encoding="utf-8")
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [line for line in run.stdout.splitlines() if "tool.settled" not in line]
    assert (run.returncode, results) == (0, printed.splitlines()), run.stderr


async def test_the_examples_of_declarations_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,), (package, policies) = section("Declaring tools", "python"), section("Declaring tools", "toml")
    assert tomllib.loads(package)["project"]["entry-points"]["turnstream.tools"] == {"shop": "shop:toolset"}
    (tmp_path / "shop_of_the_docs.py").write_text(module, encoding="utf-8")
    (tmp_path / "tools.toml").write_text(section("MCP servers", "toml")[0] + policies, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    @tool(read_only=True)
    async def doc_search(words: str) -> str:
        """Search."""
        return words

    settings = ToolSettings(
        file=tmp_path / "tools.toml", reference="shop_of_the_docs:toolset", environment={"SHOP_CURRENCY": "€"}
    )
    async with open_toolset([doc_search], settings) as toolset:
        assert (await toolset.run("price", '{"article": "tea"}', CONTEXT)).text == "tea: 3 €"
        assert toolset.policy("price").approval == "always"
        assert toolset.policy("doc_search").breaker is None

"""HTTP tools that a tools file declares."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT, blocks
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools import HttpToolsSettings
from turnstream.extensions.http_tools.declared import http_tools
from turnstream.extensions.http_tools.tool import HttpTool
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.main import running
from turnstream.scripted import ScriptedProvider
from turnstream.setup.parts import Given
from turnstream.tools.policy import Breaker, Policy

DECLARED = """
[http.weather]
url = "https://weather.example/$REGION/now"
description = "How it is outside."
input_schema = { type = "object", properties = { city = { type = "string" } }, required = ["city"] }
headers = { Authorization = "Bearer ${WEATHER_KEY}", X-Price = "1$$" }
timeout = 5
read_only = true
internal = true
breaker = { failures = 2 }

[http.order]
url = "https://shop.example/order"
description = "Order it."
input_schema = '{"type": "object"}'
retry_safe = true
breaker = false
approval = "always"
approval_expiry = 3600
"""
ENVIRONMENT = {"WEATHER_KEY": "tok-1", "REGION": "eu"}
HTTP = """[http.weather]
url = "https://weather.example"
description = "How it is outside."
input_schema = { type = "object" }
"""


def read(folder: Path, text: str, environment: Mapping[str, str] = ENVIRONMENT) -> list[HttpTool]:
    path = folder / "tools.toml"
    path.write_text(text, encoding="utf-8")
    kind = http_tools(HttpToolsSettings(_env_file=None))
    assert kind.table is not None
    made = kind.make(read_declarations(path, environment, {kind.name: kind.table})).tools
    return [each for each in made if isinstance(each, HttpTool)]


def test_an_http_tool_is_read_with_its_secrets_from_the_environment(tmp_path: Path) -> None:
    weather, order = read(tmp_path, DECLARED)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert weather.spec == ToolSpec("weather", "How it is outside.", json.dumps(schema), read_only=True)
    assert weather.call == HttpCall(
        "https://weather.example/eu/now", headers={"Authorization": "Bearer tok-1", "X-Price": "1$"}
    )
    assert weather.policy == Policy(timeout=5, breaker=Breaker(failures=2))
    assert weather.allowed.allows_host("weather.example")
    assert order.spec.input_schema == '{"type": "object"}'
    assert order.spec.retry_safe
    assert order.policy == Policy(breaker=None, approval="always", approval_expiry=3600)
    assert not order.allowed.allows_host("shop.example")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[http]]\nurl = 'x'", ": `http` must be tables that have a name each: write [http.NAME]"),
        ("http = 3", ": `http` must be tables that have a name each: write [http.NAME]"),
        (HTTP + "timout = 3", ": [http.weather] has no key `timout`; did you mean `timeout`?"),
        (HTTP + "zzz = 3", ": [http.weather] has no key `zzz`; the keys are timeout, background, "),
        (HTTP + "timeout = 'soon'", ": [http.weather] `timeout`: input should be a valid number"),
        (HTTP + "timeout = 0", ": [http.weather] weather: `timeout` must be a number of seconds above 0, not 0"),
        (HTTP + "timeout = inf", ": [http.weather] weather: `timeout` must be a number of seconds above 0, not inf"),
        (HTTP + "memo = true", ": [http.weather] weather cannot have a `memo`: declare it `read_only`"),
        (HTTP + "read_only = 1", ": [http.weather] `read_only`: input should be a valid boolean"),
        (HTTP + "headers = { a = 1 }", ": [http.weather] `headers.a`: input should be a valid string"),
        (HTTP + "headers = { a = '$NONE' }", ": [http.weather] `headers.a` names $NONE, which is not set: set it in"),
        (HTTP + "headers = { a = '5 $' }", ": [http.weather] `headers.a` has a $ without the name of a variable: "),
        (HTTP + "breaker = { failures = 'x' }", ": [http.weather] `breaker.failures`: input should be a valid integer"),
        (HTTP + "breaker = { after = 1 }", ": [http.weather] has no key `breaker.after`"),
        (HTTP + "approval = 'often'", ": [http.weather] `approval`: input should be 'never' or 'always'"),
        ("[http.weather]", ": [http.weather] `url`: is missing; "),
        (HTTP.replace("https:", "http:"), ": [http.weather] the URL must begin with https://"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_file_table_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).removeprefix(f"{tmp_path}/tools.toml").startswith(words)


async def test_a_tool_of_the_file_is_in_the_toolset_of_a_server(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_KEY", "tok-1")
    path = tmp_path / "tools.toml"
    path.write_text(HTTP + 'headers = { x-key = "$WEATHER_KEY" }\n[policy.weather]\ntimeout = 4\n')
    values: dict[str, Any] = {
        "database_url": database_url,
        "model": "scripted",
        "port": 0,
        "tools_file": path,
        "http_tools_allow": "127.0.0.1, 10.0.0.0/8",
        "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }
    models = Models([ProviderModels(ScriptedProvider([]), ["scripted"])])
    async with running(Settings(_env_file=None, **values), Given(models)) as services:
        assert services.resolver.toolset.policy("weather").timeout == 4


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("https:", "http:", r"tools\.toml: \[http\.weather\] the URL must begin with https://$"),
        ("$WEATHER_KEY", "a\\nb", r"tools\.toml: \[http\.weather\] the value of the header x-key"),
        ('{ type = "object" }', '{ type = "list" }', r"tools\.toml: \[http\.weather\] the input schema must be"),
    ],
)
async def test_a_file_that_is_wrong_stops_the_start(tmp_path: Path, before: str, after: str, words: str) -> None:
    path, text = tmp_path / "tools.toml", HTTP + 'headers = { x-key = "$WEATHER_KEY" }\n'
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(ConfigError, match=words):
        async with open_toolset([], ToolSettings(file=path, environment=ENVIRONMENT)):
            pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ToolSettings(allowed="10.0.0.0/33"),
            "^TURNSTREAM_HTTP_TOOLS_ALLOW: '10.0.0.0/33' must be an address",
        ),
        (ToolSettings(signing_secret="not base64!"), "^TURNSTREAM_SIGNING_SECRET: a signing secret must be base64"),
    ],
)
async def test_a_setting_that_is_wrong_stops_the_start(settings: ToolSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with open_toolset([], settings):
            pass


def test_the_example_of_the_page_prints_the_documented_text(tmp_path: Path) -> None:
    (declared,), (printed,) = (blocks("docs/http-tools.md", "HTTP tools", kind) for kind in ("toml", "text"))
    (tmp_path / "tools.toml").write_text(declared, encoding="utf-8")
    shutil.copy(ROOT / "examples/http_tool/weather.py", tmp_path / "example.py")
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

"""HTTP tools of the tools file."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools import HttpToolsSettings
from turnstream.extensions.http_tools.declared import http_tools
from turnstream.extensions.http_tools.tool import HttpTool
from turnstream.tools.declared.declarations import read_declarations
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
        (HTTP + "zzz = 3", ": [http.weather] has no key `zzz`; the keys are timeout, concurrency, "),
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

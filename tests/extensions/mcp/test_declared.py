"""MCP servers of the tools file."""

from pathlib import Path

import pytest

from tests.extensions.mcp.mcp_servers import declared_servers
from turnstream.domain.errors import ConfigError
from turnstream.extensions.mcp.declared import McpServer
from turnstream.tools.policy import Policy

DECLARED = """
[mcp.time]
command = "mcp-server-time"
args = ["--local-timezone", "$ZONE"]
env = { KEY = "$WEATHER_KEY" }
cwd = "/srv"
tools = ["get_current_time"]
read_only = ["get_current_time"]
timeout = 7
retries = 0

[mcp.time.policy.get_current_time]
concurrency = 2

[mcp.wiki]
url = "https://wiki.example/mcp"
headers = { Authorization = "Bearer $WEATHER_KEY" }
prefix = "w"
trusted = true

[policy.time__get_current_time]
concurrency = 3

[policy.w__search]
max_result_chars = 500
"""
ENVIRONMENT = {"WEATHER_KEY": "tok-1", "ZONE": "Europe/Oslo"}


def read(folder: Path, text: str) -> list[McpServer]:
    path = folder / "tools.toml"
    path.write_text(text, encoding="utf-8")
    return declared_servers(path, ENVIRONMENT)


def test_an_mcp_server_is_read(tmp_path: Path) -> None:
    time, wiki = read(tmp_path, DECLARED)
    assert time == McpServer(
        "time",
        command="mcp-server-time",
        args=("--local-timezone", "Europe/Oslo"),
        env={"KEY": "tok-1"},
        cwd="/srv",
        tools=("get_current_time",),
        read_only=frozenset({"get_current_time"}),
        policy=Policy(timeout=7, retries=0),
        policies={"get_current_time": Policy(timeout=7, retries=0, concurrency=3)},
    )
    assert wiki == McpServer(
        "wiki",
        url="https://wiki.example/mcp",
        headers={"Authorization": "Bearer tok-1"},
        prefix="w",
        trusted=True,
        policies={"search": Policy(max_result_chars=500)},
    )


def test_a_tool_of_a_server_has_its_own_policy_or_the_servers(tmp_path: Path) -> None:
    time, _ = read(tmp_path, DECLARED)
    assert time.policy_of("get_current_time").concurrency == 3
    assert time.policy_of("convert_time") == Policy(timeout=7, retries=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mcp.time]", ": [mcp.time]: a server needs either a `command` or a `url`"),
        ("[mcp.time]\ncommand = 'a'\nurl = 'b'", ": [mcp.time]: a server needs either a `command` or a `url`"),
        ("[mcp.time]\ncommand = 'a'\nheaders = {}", ": [mcp.time]: a server with a `command` takes no `headers`"),
        ("[mcp.time]\nurl = 'a'\nargs = []", ": [mcp.time]: a server with a `url` takes no `args`"),
        ("[mcp.time]\nurl = '$NONE'", ": [mcp.time] `url` names $NONE, which is not set"),
        ("[mcp.time]\nurl = 'a'\nretries = -1", ": [mcp.time] `retries` must be 0 (none) or more, not -1"),
        ("[mcp.time]\nurl = 'a'\n[mcp.time.policy.b]\ntimeot = 1", ": [mcp.time.policy.b] has no key `timeot`; did"),
        ("[mcp.time]\nurl = 'a'\n[policy.time__b]\nretries = -1", ": [mcp.time] policy.b `retries` must be 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_file_table_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).removeprefix(f"{tmp_path}/tools.toml").startswith(words)

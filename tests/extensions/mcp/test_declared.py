"""MCP servers that a tools file declares."""

import asyncio
import sys
import tomllib
from pathlib import Path
from uuid import UUID

import pytest

from tests.extensions.mcp.mcp_servers import declared_servers
from tests.support.pages import blocks
from turnstream.domain.errors import ConfigError
from turnstream.extensions.mcp.declared import McpServer
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset
from turnstream.tools.policy import Policy
from turnstream.tools.tool import ToolContext, tool

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
RUNNING = f"""
[mcp.time]
command = "{sys.executable}"
args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]

[policy.time__convert_time]
timeout = 4
"""
PAGE = "docs/tools.md"
CONTEXT = ToolContext("ada", UUID(int=1), UUID(int=2), "toolu_1", "key-1", progress=lambda words: None)
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
        prompts=False,
        resources=False,
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
        ("[mcp.time]\ncommand = 'a'\nauth = 'oauth'", ": [mcp.time]: `auth` needs a `url`"),
        ("[mcp.time]\nurl = 'a'\nscopes = []", ': [mcp.time]: `scopes` needs `auth = "oauth"`'),
        ("[mcp.time]\nurl = 'a'\nauth = 'exchange'\nissuer = 'b'", ': [mcp.time]: `auth = "exchange"` needs `client'),
        ("[mcp.time]\nurl = 'a'\nauth = 'oauth'\naudience = 'b'", ': [mcp.time]: `audience` needs `auth = "exchange"`'),
        ("[mcp.time]\nurl = 'a'\nauth = 'oauth'\nclient_secret = 'x'", ": [mcp.time]: `client_secret` needs a"),
        ("[mcp.time]\nurl = 'a'\nauth = 'basic'", ": [mcp.time] `auth`: input should be 'oauth'"),
        ("[mcp.time]\nurl = 'a'\nauth = 'oauth'\nbackground = true", ': [mcp.time] `background` and `auth` exclude'),
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


async def test_tools_of_a_server_have_the_policies_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"
    path.write_text(RUNNING)
    async with open_toolset([], ToolSettings(file=path)) as toolset:
        # On a loaded machine, the MCP server may take longer to start than the five seconds that the toolset waits.
        while "time__convert_time" not in toolset.names:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert toolset.names == ("time__get_current_time", "time__convert_time")
        assert toolset.policy("time__convert_time").timeout == 4
        outcome = await toolset.run("time__get_current_time", '{"timezone": "Europe/Oslo"}', CONTEXT)
        assert "Europe/Oslo" in outcome.text


async def test_two_servers_of_one_prefix_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"
    path.write_text(f'[mcp.clock]\nurl = "https://a.example"\nprefix = "time"\n{RUNNING}')
    with pytest.raises(ConfigError, match="two MCP servers"):
        async with open_toolset([], ToolSettings(file=path)):
            pass


# --- the documentation -----------------------------------------------------------------------------------------------


def test_the_servers_of_the_page_can_be_declared(tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text("".join(blocks("docs/mcp.md", "MCP servers", "toml")), encoding="utf-8")
    servers = declared_servers(tmp_path / "tools.toml", {"WIKI_TOKEN": "tok-1"})
    assert [server.name for server in servers] == ["clock", "company-wiki"]


def test_the_calendar_of_the_page_wants_a_sign_in(tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text("".join(blocks("docs/mcp.md", "Sign-ins of owners", "toml")), "utf-8")
    (server,) = declared_servers(tmp_path / "tools.toml", {"CALENDAR_LIST_TOKEN": "tok-1"})
    assert (server.oauth, server.scopes, server.client_id) == (True, ("calendar.read",), None)


def test_the_calendar_of_the_page_has_tools_of_each_owner(tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text("".join(blocks("docs/mcp.md", "Tools of each owner", "toml")), "utf-8")
    (server,) = declared_servers(tmp_path / "tools.toml", {})
    assert (server.oauth, server.owner_tools, server.policy_of("invite").approval) == (True, True, "always")


def test_the_calendar_of_the_page_exchanges_tokens(tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text("".join(blocks("docs/mcp.md", "Token exchange", "toml")), "utf-8")
    environment = {"CALENDAR_LIST_TOKEN": "tok-1", "LOGIN_CLIENT_SECRET": "s3cret"}
    (server,) = declared_servers(tmp_path / "tools.toml", environment)
    assert (server.exchange, server.audience, server.client_secret) == (True, "calendar", "s3cret")


async def test_a_server_with_sign_in_needs_the_address_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text("[mcp.calendar]\nurl = 'http://127.0.0.1:9/mcp'\nauth = 'oauth'\n", "utf-8")
    with pytest.raises(ConfigError, match="TURNSTREAM_SIGN_IN_URL"):
        async with open_toolset([], ToolSettings(file=tmp_path / "tools.toml")):
            pass


async def test_the_examples_of_declarations_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,), (package, policies) = (blocks(PAGE, "Declaring tools", kind) for kind in ("python", "toml"))
    assert tomllib.loads(package)["project"]["entry-points"]["turnstream.tools"] == {"shop": "shop:toolset"}
    (tmp_path / "shop_of_the_docs.py").write_text(module, encoding="utf-8")
    (tmp_path / "tools.toml").write_text(blocks("docs/mcp.md", "MCP servers", "toml")[0] + policies, encoding="utf-8")
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

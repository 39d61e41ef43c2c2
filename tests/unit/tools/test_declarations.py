import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.tools.declared.declarations import Declarations, HttpDeclaration, McpServer, read_declarations
from turnstream.tools.declared.tables import PolicyTable
from turnstream.tools.policy import Breaker, Policy, PolicyOptions
from turnstream.tools.tool import Outcome, Tool, ToolContext, tool

EVERYTHING = """
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

[policy.doc_view]
timeout = 1.5
"""
ENVIRONMENT = {"WEATHER_KEY": "tok-1", "REGION": "eu", "ZONE": "Europe/Oslo"}


def read(folder: Path, text: str, environment: Mapping[str, str] = ENVIRONMENT) -> Declarations:
    path = folder / "tools.toml"
    path.write_text(text, encoding="utf-8")
    return read_declarations(path, environment)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/tools.toml")


@tool(read_only=True, max_result_chars=900)
async def doc_view(path: str) -> dict[str, str]:
    """Look at a document."""
    return {"path": path}


class Plain:
    """A tool of another make, without a field for its policy."""

    spec = ToolSpec("plain", "Say hello.", '{"type": "object"}')
    policy = Policy(timeout=9)

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        return Outcome(f"hello to {input_json}")


# --- the content of a file -------------------------------------------------------------------------------------------


def test_an_http_tool_is_read_with_its_secrets_from_the_environment(tmp_path: Path) -> None:
    weather, order = read(tmp_path, EVERYTHING).http
    call = HttpCall("https://weather.example/eu/now", headers={"Authorization": "Bearer tok-1", "X-Price": "1$"})
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert weather == HttpDeclaration(
        ToolSpec("weather", "How it is outside.", json.dumps(schema), read_only=True, http=call),
        Policy(timeout=5, breaker=Breaker(failures=2)),
        internal=True,
    )
    assert order.spec.input_schema == '{"type": "object"}'
    assert order.spec.retry_safe
    assert order.policy == Policy(breaker=None, approval="always", approval_expiry=3600)
    assert not order.internal


def test_an_mcp_server_is_read(tmp_path: Path) -> None:
    time, wiki = read(tmp_path, EVERYTHING).servers
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
    time, _ = read(tmp_path, EVERYTHING).servers
    assert time.policy_of("get_current_time").concurrency == 3
    assert time.policy_of("convert_time") == Policy(timeout=7, retries=0)


def test_a_file_without_anything_declares_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Declarations(f"{tmp_path}/tools.toml")


def test_every_field_of_a_policy_can_be_chosen_with_its_own_default() -> None:
    assert set(PolicyTable.model_fields) == {field.name for field in fields(Policy)}
    assert PolicyTable().options() == {}
    defaults = {name: field.default for name, field in PolicyTable.model_fields.items()}
    assert Policy(**defaults) == Policy()
    assert PolicyTable.model_validate({"breaker": {"pause": 1.0}}).options() == {"breaker": Breaker(pause=1.0)}


# --- mistakes --------------------------------------------------------------------------------------------------------

HTTP = """[http.weather]
url = "https://weather.example"
description = "How it is outside."
input_schema = { type = "object" }
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = [", " is not TOML: Invalid value (at end of document)"),
        ("[[http]]\nurl = 'x'", ": `http` must be tables that have a name each: write [http.NAME]"),
        ("[htp.weather]\nurl = 'x'", ": there is no table [htp]; the tables are [http.NAME], "),
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
        ("[mcp.time]", ": [mcp.time]: a server needs either a `command` or a `url`"),
        ("[mcp.time]\ncommand = 'a'\nurl = 'b'", ": [mcp.time]: a server needs either a `command` or a `url`"),
        ("[mcp.time]\ncommand = 'a'\nheaders = {}", ": [mcp.time]: a server with a `command` takes no `headers`"),
        ("[mcp.time]\nurl = 'a'\nargs = []", ": [mcp.time]: a server with a `url` takes no `args`"),
        ("[mcp.time]\nurl = '$NONE'", ": [mcp.time] `url` names $NONE, which is not set"),
        ("[mcp.time]\nurl = 'a'\nretries = -1", ": [mcp.time] `retries` must be 0 (none) or more, not -1"),
        ("[mcp.time]\nurl = 'a'\n[mcp.time.policy.b]\ntimeot = 1", ": [mcp.time.policy.b] has no key `timeot`; did"),
        ("[mcp.time]\nurl = 'a'\n[policy.time__b]\nretries = -1", ": [mcp.time] policy.b `retries` must be 0"),
        ("[policy.doc_view]\ntimeout = '1'", ": [policy.doc_view] `timeout`: input should be a valid number"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_file_table_and_key(tmp_path: Path, text: str, words: str) -> None:
    assert complaint(tmp_path, text).startswith(words)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TURNSTREAM_TOOLS_FILE: .*tools\.toml cannot be read"):
        read_declarations(tmp_path / "tools.toml", {})


def test_a_tool_that_cannot_be_made_is_reported_with_its_table(tmp_path: Path) -> None:
    def refuse(declaration: HttpDeclaration) -> Tool:
        raise ValueError("the URL is not valid")

    with pytest.raises(ConfigError, match=r"tools\.toml: \[http\.weather\] the URL is not valid"):
        read(tmp_path, HTTP).http_tools(refuse)


# --- policies of other tools -----------------------------------------------------------------------------------------


def applied(name: str, options: PolicyOptions, *tools: Tool) -> list[Tool]:
    return Declarations("tools.toml", policies={name: options}).apply_policies(tools)


async def test_a_policy_can_be_chosen_for_any_tool(context: ToolContext) -> None:
    view, plain = applied("doc_view", {"timeout": 2.0, "results": "text"}, doc_view, Plain())
    assert view.policy == Policy(timeout=2, results="text", max_result_chars=900)
    assert await view(context, '{"path": "a"}') == Outcome("path: a")
    assert plain.policy == Policy(timeout=9)


async def test_a_policy_can_be_chosen_for_a_tool_of_any_make(context: ToolContext) -> None:
    (plain,) = applied("plain", {"approval": "always"}, Plain())
    assert plain.policy == Policy(timeout=9, approval="always")
    assert plain.spec == Plain.spec
    assert await plain(context, "{}") == Outcome("hello to {}")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plain", {"retries": 2}, "plain cannot have `retries`"),
        ("plain", {"memo": True}, "plain cannot have a `memo`"),
        ("plain", {"fallback": "plain"}, "plain cannot be its own `fallback`"),
        ("plain", {"approval_expiry": 5.0}, "`approval_expiry` needs"),
        ("doc_veiw", {"timeout": 5.0}, r"there is no tool of this name; did you mean doc_view\?"),
        ("zzz", {"timeout": 5.0}, "there is no tool of this name; the tools are: doc_view, plain$"),
    ],
)
def test_a_policy_that_a_tool_cannot_have_is_reported(name: str, options: PolicyOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tools\.toml: \[policy\.{name}\] {words}"):
        applied(name, options, doc_view, Plain())


def test_a_policy_for_a_tool_that_a_server_may_have_is_no_mistake(tmp_path: Path) -> None:
    assert read(tmp_path, EVERYTHING.replace("doc_view", "w__read")).apply_policies([]) == []
    with pytest.raises(ConfigError, match=r"\[policy\.doc_view\] there is no tool"):
        read(tmp_path, EVERYTHING).apply_policies([])

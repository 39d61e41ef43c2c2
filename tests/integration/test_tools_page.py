"""The examples on the pages about tools. Some examples run on a server; the output of the others is compared with the
page.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.assistants.model import Conversation, Said, Whole, model_api
from tests.support.assistants.visit import results_of
from tests.support.http_client import Client, Json, words_of
from tests.support.http_client import Said as Exchange
from tests.support.http_server import Server, pausing, serving
from tests.support.pages import BLOCKS
from tests.support.server_process import clean_environment
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.tools.tool import Detached, FunctionTool, ResultAddress, StoppedCall, ToolContext, tool
from turnstream.tools.toolset import Toolset

ROOT = Path(__file__).parents[2]
_PAGES = {f"docs/{name}.md" for name in ("api", "approvals", "background-tools", "tools-of-a-turn")}
ADDRESS = "http://127.0.0.1:8000"

needs_curl = pytest.mark.needs("curl")


def examples(heading: str, kind: str) -> list[str]:
    """Returns the code blocks of one language below a heading of a page about tools."""
    return [block.code for block in BLOCKS if block.page in _PAGES and block[1:3] == (heading, kind)]


@asynccontextmanager
async def demo(database_url: str, **settings: Any) -> AsyncIterator[Server]:
    """Yields a server like that of `make run` without a key."""
    async with serving(
        database_url, offers=[ProviderModels(DemoProvider(0), ["demo"])], model="demo", **settings
    ) as server:
        yield server


async def shell(heading: str, server: Server, folder: Path, *before: str) -> str:
    """Returns the output of all commands of a section, which run one after another in one shell."""
    script = "\n".join(["set -eu", f"server={ADDRESS}", *before, *examples(heading, "sh")]).replace(ADDRESS, server.url)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(), 50)
    assert (process.returncode, error.decode()) == (0, "")
    return out.decode()


def exchange(folder: Path, name: str) -> Json:
    found: Json = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


async def turn_of(server: Server, exchange: Json) -> Json:
    """Returns the assistant turn once it has ended."""
    async with Client(server.url) as api:
        return await ended(api, exchange)


async def ended(api: Client, exchange: Json) -> Json:
    made = Exchange(exchange["user_turn"], exchange["assistant_turn"], exchange["stream_url"])
    await api.events(made.stream_url)
    found: Json = await api.json("GET", made.url)
    return found


@needs_curl
async def test_the_example_of_a_client_tool_works(database_url: str, tmp_path: Path) -> None:
    async with demo(database_url) as server:
        printed = await shell("Client tools", server, tmp_path)
        turn = await turn_of(server, exchange(tmp_path, "exchange.json"))
    assert '"type":"client","input":{"query":' in printed
    assert "\nevent: turn_complete\n" in printed
    assert results_of(turn) == [("notes/clock.txt: I changed the battery after two years.", False)]


@needs_curl
async def test_the_example_of_a_provider_tool_works(database_url: str, tmp_path: Path) -> None:
    async with model_api(searches_the_web) as model, AnthropicProvider("sk-ant-0", model.url) as provider:
        offer = ProviderModels(provider, ["claude-x"])
        async with serving(database_url, offers=[offer], model="claude-x") as server:
            printed = await shell("The provider's own tools", server, tmp_path)
    assert '"type":"web_search_tool_result"' in printed
    assert "\nevent: turn_complete\n" in printed
    assert model.requests[0]["tools"][-1]["type"] == "web_search_20250305"


def searches_the_web(conversation: Conversation) -> Iterable[Said]:
    assert conversation.offered == {"web_search"}
    query = {"query": "tide Saint-Malo today"}
    found = [{"type": "web_search_result", "url": "https://example.com", "title": "Tides", "encrypted_content": "…"}]
    return [
        Whole({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": query}),
        Whole({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found}),
        "Twelve metres.",
    ]


@pytest.mark.extensions("documents")
@needs_curl
async def test_the_example_of_a_choice_of_tools_works(database_url: str, tmp_path: Path) -> None:
    async with demo(database_url) as server:
        printed = await shell("Which tools a turn has", server, tmp_path)
        turn = await turn_of(server, exchange(tmp_path, "exchange.json"))
    assert printed == ""
    assert {block["name"] for block in turn["blocks"] if block["type"] == "tool_use"} == {"doc_tree"}


def test_the_function_of_the_page_asks_for_large_amounts_only() -> None:
    (code,) = examples("Approvals", "python")
    module: dict[str, Any] = {"__name__": "refunds"}
    exec(compile(code, "docs/approvals.md", "exec"), module)
    toolset = Toolset([module["refund"]])
    decisions = {
        amount: toolset.needs_approval("refund", json.dumps({"order": "1", "amount": amount})) for amount in (100, 101)
    }
    assert decisions == {100: False, 101: True}


@pytest.mark.extensions("documents")
@needs_curl
async def test_the_example_of_an_approval_with_another_input_works(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(examples("Approvals", "toml")[0], encoding="utf-8")
    async with demo(database_url, tools_file=file) as server:
        printed = await shell("Approvals", server, tmp_path)
        turn = await turn_of(server, exchange(tmp_path, "exchange.json"))
    assert printed.startswith("event: turn_complete\n")
    notes = [
        block["notes"]["approval"] for block in turn["blocks"] if block.get("name") == "doc_search" and "notes" in block
    ]
    assert notes == [{"decision": "approve", "input": '{"query":"red light"}'}]


@pytest.mark.extensions("documents")
@needs_curl
async def test_the_example_of_an_approval_for_a_chat_works(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(examples("Approvals", "toml")[0], encoding="utf-8")
    async with demo(database_url, tools_file=file) as server:
        assert (
            await shell("Approvals for a chat", server, tmp_path, examples("Approvals", "sh")[0])
            == '"tool":"doc_search"\n'
        )


@needs_curl
async def test_the_example_of_a_busy_branch_works(database_url: str, tmp_path: Path) -> None:
    offer = ProviderModels(ScriptedProvider(never_done_with_the_battery), ["slow"])
    async with serving(database_url, offers=[offer], model="slow") as server:
        printed = await shell("While the model talks", server, tmp_path)
        first, second, last, beside = [
            await turn_of(server, exchange(tmp_path, f"{name}.json")) for name in ("first", "second", "last", "beside")
        ]
    refused, steered, *events = printed.splitlines()
    assert "is still running on this branch" in refused
    assert (steered, "event: turn_complete" in events) == ('"steered":true', True)
    assert [turn["status"] for turn in (first, second)] == ["cancelled", "cancelled"]
    assert [block["text"] for block in first["blocks"]] == ["Two ", "The battery of the bell, I mean"]
    assert words_of(last) == "You said: Stop. What does the red light mean?"
    assert words_of(beside) == "You said: Or: how is the clock set?"


def never_done_with_the_battery(request: ModelRequest) -> Reply:
    message = request.messages[-1].blocks[-1].text
    if message == "How long does the battery last?":
        return pausing(Pause(), "Two ", "years.")
    return message_of(text(f"You said: {message}"))


async def test_the_background_tool_of_the_page_continues_from_its_checkpoint() -> None:
    done: list[tuple[int, int]] = []
    stored: list[int] = []

    async def import_month(year: int, month: int, key: str) -> None:
        assert key == f"key:{month}"
        done.append((year, month))

    async def checkpoint(value: int) -> None:
        stored.append(value)

    names: dict[str, Any] = {"tool": tool, "ToolContext": ToolContext, "import_month": import_month}
    exec("\n".join(examples("Background tools", "python")), names)
    made: FunctionTool = names["import_orders"]
    assert (made.policy.background, made.policy.seconds) == (True, 3600)
    context = ToolContext(
        "ada", UUID(int=1), UUID(int=2), "a", "key", lambda _: None, checkpoint=checkpoint, checkpointed=11
    )
    outcome = await made(context, '{"year": 2026}')
    assert (outcome.text, done, stored) == ("The orders of 2026 are imported.", [(2026, 11), (2026, 12)], [12, 13])


class Farm:
    """Renders elsewhere."""

    def __init__(self) -> None:
        self.started: list[Mapping[str, str]] = []
        self.results: dict[str, str] = {}
        self.cancelled: list[str] = []

    async def start(self, scene: str, **given: str) -> str:
        self.started.append({"scene": scene, **given})
        return "r7"

    async def result(self, job: str) -> str | None:
        return self.results.get(job)

    async def cancel(self, job: str) -> None:
        self.cancelled.append(job)


async def test_the_tool_of_the_page_that_detaches_looks_again_with_its_handle() -> None:
    farm, detached = Farm(), list[Detached]()

    async def result_address() -> ResultAddress:
        return ResultAddress("/api/jobs/1/result", "tsj_1")

    names: dict[str, Any] = {"tool": tool, "ToolContext": ToolContext, "Detached": Detached, "farm": farm}
    names["StoppedCall"] = StoppedCall
    exec("\n".join(examples("Calls that go on elsewhere", "python")), names)
    made: FunctionTool = names["render"]
    context = ToolContext(
        "ada",
        UUID(int=1),
        UUID(int=2),
        "a",
        "key",
        lambda _: None,
        detach=detached.append,
        result_address=result_address,
    )
    for _ in range(2):
        await made(context, '{"scene": "dawn"}')
        context = replace(context, handle=detached[-1].handle)
    assert [(each.handle, each.after) for each in detached] == [({"job": "r7"}, 600)] * 2
    assert farm.started == [{"scene": "dawn", "key": "key", "post_to": "/api/jobs/1/result", "token": "tsj_1"}]
    farm.results["r7"] = "dawn.png"
    assert (await made(context, '{"scene": "dawn"}')).text == "dawn.png"
    await names["stop_render"](StoppedCall("ada", UUID(int=2), "a", "key", UUID(int=1), {"job": "r7"}))
    assert farm.cancelled == ["r7"]

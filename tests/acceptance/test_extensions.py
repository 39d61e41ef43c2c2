"""The core without extensions and without the packages of the extras. A program supplies the provider. The core accepts
messages, streams, runs tools and survives a kill.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.support.assistants.model import Conversation, Said, Silence, Use, model_api
from tests.support.budget import LIBRARIES
from tests.support.calls import ENDPOINTS, OPENAI
from tests.support.http_client import Event, Parser, said
from tests.support.installed import dependencies, extras, installed, link_dependencies, run
from tests.support.server_process import Server
from turnstream.api.routes import CORE
from turnstream.extensions.openapi.calls import CALLS
from turnstream_client.assembler import Assembler

ROOT = Path(__file__).parents[2]
TOOLS = """
from turnstream import tool

@tool
async def high_water(port: str) -> str:
    \"\"\"The time of high water.\"\"\"
    return f"High water in {port} is at 14:07."

TOOLS = [high_water]
"""
PROGRAM = """
import uvicorn
from harbour import TOOLS
from turnstream import Toolset, create_app, read_settings

settings = read_settings()
uvicorn.run(create_app(settings, toolset=Toolset(TOOLS), models=None), port=settings.port)
"""
PROVIDER = """
import asyncio
from pathlib import Path

from turnstream import BlockClosed, BlockOpened, BlockText, MessageDelta, MessageEnded, MessageStarted
from turnstream.llm.models.catalog import Models, ProviderModels


class Almanac:
    name = "almanac"

    async def stream(self, request):
        blocks = [block for message in request.messages for block in message.blocks]
        results = [block.text for block in blocks if block.type == "tool_result"]
        yield [MessageStarted({"input_tokens": 9})]
        if not results:
            yield [BlockOpened(0, "text"), BlockText(0, "I look it up."), BlockClosed(0)]
            yield [BlockOpened(1, "tool_use", tool_use_id="call_1", name="high_water")]
            yield [BlockText(1, '{"port": "Dover"}'), BlockClosed(1)]
            yield [MessageDelta("tool_use", {"output_tokens": 9}), MessageEnded()]
        else:
            yield [BlockOpened(0, "text"), BlockText(0, f"The tool answered: {results[0]}")]
            if not Path("killed").exists():
                await asyncio.Event().wait()
            yield [BlockClosed(0), MessageDelta("end_turn", {"output_tokens": 9}), MessageEnded()]


MODELS = Models([ProviderModels(Almanac(), ["almanac-1"])])
"""
IMPORTS = """
import sys

from turnstream import tool

@tool
async def imported() -> list[str]:
    \"\"\"The modules that the server has imported.\"\"\"
    return [name for name in sys.modules if name.startswith("turnstream.")]

TOOLS = [imported]
"""
HTTP_TOOL = {
    "type": "http",
    "name": "tide",
    "description": "The tide.",
    "input_schema": {"type": "object"},
    "url": "https://tides.example",
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that has only the server and its dependencies."""
    programs = installed(tmp_path_factory.mktemp("core"), ROOT)
    link_dependencies(programs, "turnstream")
    return programs


def test_the_environment_of_the_core_has_no_package_of_an_extra(programs: Path) -> None:
    every = dependencies("turnstream", extras("turnstream"))
    left_out = sorted(every.keys() - dependencies("turnstream").keys())
    assert {"mcp", "openai"} <= {*left_out}
    listed = "import importlib.metadata as m; print(*(each.name.lower() for each in m.distributions()))"
    present = run(str(programs / "python"), "-c", listed).split()
    assert "turnstream" in present
    assert not {*left_out} & {*present}


@pytest.mark.parametrize("extensions", ["anthropic", "none"])
async def test_the_core_alone_runs_tools_and_continues_after_a_kill(
    programs: Path, database_url: str, tmp_path: Path, extensions: str
) -> None:
    """Without extensions, a program supplies the provider and the tool. With extensions, `turnstream serve` loads the
    tool from a package.
    """

    class Core(Server):
        command = (programs / "turnstream", "serve") if extensions != "none" else (programs / "python", "program.py")

    killed = False

    def mind(conversation: Conversation) -> Iterable[Said]:
        if not conversation.answered:
            return ["I look it up.", Use("high_water", {"port": "Dover"})]
        answer = [f"The tool answered: {conversation.answered[0].text}"]
        return answer if killed else [*answer, Silence()]

    (tmp_path / "harbour.py").write_text(TOOLS)
    (tmp_path / "almanac.py").write_text(PROVIDER)
    (tmp_path / "program.py").write_text(
        PROGRAM.replace("models=None", "models=MODELS").replace(
            "import uvicorn", "import uvicorn\nfrom almanac import MODELS"
        )
    )
    if extensions != "none":
        package = tmp_path / "harbour-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: harbour\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text("[turnstream.tools]\nharbour = harbour:TOOLS\n")
    async with model_api(mind) as model:
        running = Core(
            database_url,
            tmp_path,
            {
                "TURNSTREAM_EXTENSIONS": extensions,
                "TURNSTREAM_DEMO_DELAY": "",
                "PYTHONPATH": str(tmp_path),
                **({} if extensions == "none" else {"ANTHROPIC_API_KEY": "sk-ant-0", "ANTHROPIC_BASE_URL": model.url}),
            },
        )
        try:
            await running.start()
            async with httpx2.AsyncClient(base_url=running.url, timeout=150) as client:
                posted = (await client.post("/api/turns", json=said("When is high water in Dover?"))).json()
                first: list[Event] = []
                async with client.stream("GET", posted["stream_url"]) as response:
                    parser = Parser()
                    async for chunk in response.aiter_bytes():
                        first += parser.feed(chunk)
                        if "14:07" in "".join(str(event.data.get("text")) for event in first):
                            break
                killed = True
                (tmp_path / "killed").touch()
                await running.kill()
                await running.start()
                refused = await client.post("/api/turns", json={**said("Look."), "tools": [HTTP_TOOL]})
                cursor = {"Last-Event-ID": str(first[-1].id)}
                rest = Parser().feed((await client.get(posted["stream_url"], headers=cursor)).content)
                turn = (await client.get(posted["stream_url"].removesuffix("/stream"))).json()
        finally:
            await running.close()
    assembler = Assembler()
    for event in (*first, *rest):
        assembler.apply(event.name, event.data)
    assert (assembler.end, assembler.blocks) == ("turn_complete", turn["blocks"])
    assert "this server calls no HTTP tools of requests" in refused.json()["detail"]
    assert {"tool_use", "tool_result", "text"} <= {block["type"] for block in turn["blocks"]}


@pytest.mark.parametrize(
    ("extensions", "libraries"),
    [
        ("anthropic", {"providers"}),
        (
            "ai_sdk,anthropic,guardrails",
            {"dialects", "guards", "outgoing", "providers", "side_calls"},
        ),
    ],
)
async def test_a_server_imports_the_libraries_of_its_extensions_and_no_others(
    database_url: str, tmp_path: Path, extensions: str, libraries: set[str]
) -> None:
    class Program(Server):
        command = (sys.executable, "program.py")

    def mind(conversation: Conversation) -> Iterable[Said]:
        return ["These."] if conversation.answered else [Use("imported", {})]

    (tmp_path / "harbour.py").write_text(IMPORTS)
    (tmp_path / "guardrails.toml").write_text('[guardrails.keys]\non = ["text"]\npatterns = ["keys"]\n')
    (tmp_path / "program.py").write_text(PROGRAM)
    async with model_api(mind) as model:
        running = Program(
            database_url,
            tmp_path,
            {
                "TURNSTREAM_EXTENSIONS": extensions,
                "TURNSTREAM_DEMO_DELAY": "",
                "ANTHROPIC_API_KEY": "sk-ant-0",
                "ANTHROPIC_BASE_URL": model.url,
                **(
                    {"TURNSTREAM_GUARDRAILS_FILE": str(tmp_path / "guardrails.toml")}
                    if "guardrails" in extensions
                    else {}
                ),
            },
        )
        try:
            await running.start()
            async with httpx2.AsyncClient(base_url=running.url, timeout=150) as client:
                for endpoint in CORE.endpoints:
                    path = endpoint.path.replace(":path", "").replace("{", "").replace("}", "")
                    async with client.stream(endpoint.method, path) as response:
                        assert response.status_code < 500, endpoint.call
                posted = (await client.post("/api/turns", json=said("What is imported?"))).json()
                await client.get(posted["stream_url"])
                turn = (await client.get(posted["stream_url"].removesuffix("/stream"))).json()
        finally:
            await running.close()
    result = next(block["text"] for block in turn["blocks"] if block["type"] == "tool_result")
    modules = json.loads(result)
    assert {"turnstream.api.exchange", "turnstream.engine.executor"} <= {*modules}
    assert {name.split(".")[1] for name in modules} & {*LIBRARIES} <= {"libraries"}
    loaded = {name.split(".")[2] for name in modules if name.startswith("turnstream.libraries.")}
    assert (
        loaded - {"extras", "logins", "secrets", "tools_file_settings"} == libraries
    )  # the settings of all extensions are read


async def test_calls_of_extensions_are_not_there_without_them(server: StartServer) -> None:
    running = await server(
        TURNSTREAM_EXTENSIONS="anthropic,openapi", TURNSTREAM_DEMO_DELAY="", ANTHROPIC_API_KEY="sk-0"
    )
    present = (*CORE.endpoints, *CALLS.endpoints)
    left_out = [endpoint for endpoint in (*ENDPOINTS, *OPENAI) if endpoint not in present]
    shared = {endpoint.path for endpoint in present}  # another method has the same path
    assert len(left_out) > 20
    async with httpx2.AsyncClient(base_url=running.url) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for endpoint in left_out:
            path = endpoint.path.replace(":path", "")
            assert endpoint.method.lower() not in paths.get(path, {})
            response = await client.request(endpoint.method, path.replace("{", "").replace("}", ""))
            assert response.status_code == (405 if endpoint.path in shared else 404), endpoint.call

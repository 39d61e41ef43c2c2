"""A server offers the additions of an extension only if the extension is loaded."""

import asyncio
import re
import tomllib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tests.support.http_client import Client
from tests.support.http_server import answering, serving
from turnstream import Context, Extension, Hooks, Section, Settings, TurnEnded, Work, create_app, lifespan
from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.services import services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import ConfigError
from turnstream.engine.upkeep.sweeps import Sweep
from turnstream.extension import installed
from turnstream.extensions.demo import EXTENSION as DEMO
from turnstream.kit.extension_packages import GROUP
from turnstream.libraries.providers.models import default_model
from turnstream.libraries.tool_sources.declarations import Declarations, read_declarations
from turnstream.libraries.tool_sources.kinds import SourceKind, kinds_of, source_kinds
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.llm.models.catalog import Models
from turnstream.main import running
from turnstream.scripted import message_of, text, tool_use
from turnstream.setup.parts import Given
from turnstream.tools.sources import LoadedTools
from turnstream.tools.tool import Tool, tool

NO_KEYS: dict[str, Any] = {"anthropic_api_key": None, "openai_api_key": None, "gemini_api_key": None}
PAGE = Path(__file__).parents[3] / "docs/extensions.md"


class GreetingSettings(Section):
    greeting: str = "Hello"


class Greeted(BaseModel):
    greeting: str


class Greeter(Hooks):
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.ran, self.ended, self.swept = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def turn_ended(self, event: TurnEnded) -> None:
        self.ended.set()

    async def run(self) -> None:
        self.ran.set()
        await asyncio.get_running_loop().create_future()

    async def sweep(self) -> AsyncGenerator[int, None]:
        self.swept.set()
        yield 0


def greeter_of(request: Request) -> Greeter:
    greeter = services_of(request).states["greeter"]
    assert isinstance(greeter, Greeter)
    return greeter


async def get_greeting(request: Request) -> Response:
    return json_response(Greeted(greeting=greeter_of(request).greeting))


def calls() -> tuple[CallGroup]:
    return (CallGroup((Endpoint("GET /api/greeting", get_greeting, "Greet", gives=Greeted),), "Greetings", "Hello"),)


def work(context: Context) -> Work:
    greeter = Greeter(context.settings.section(GreetingSettings).greeting)
    return Work((greeter,), (greeter.run,), (Sweep("greetings", 0.01, greeter.sweep),), greeter)


async def check(settings: Settings, models: Models, ping: bool) -> str:
    if settings.section(GreetingSettings).greeting in models.listed():
        raise ConfigError("TURNSTREAM_GREETING must be no model.")
    return "polite, and awake" if ping else "polite"


GREETER = Extension("greeter", "a greeting", GreetingSettings, {"greeting": check}, calls, work)


async def test_calls_and_work_of_an_extension_are_part_of_the_server(database_url: str) -> None:
    async with (
        serving(database_url, extensions=[GREETER, installed()["openapi"]], greeting="Moin") as server,
        Client(server.url) as api,
    ):
        assert await api.json("GET", "/api/greeting") == {"greeting": "Moin"}
        refused = await api.json("GET", "/api/greeting?loud=1", 422)
        assert "loud" in refused["detail"]
        document = await api.json("GET", "/openapi.json")
        assert document["paths"]["/api/greeting"]["get"]["tags"] == ["Greetings"]
        assert {"name": "Greetings", "description": "Hello"} in document["tags"]
        assert "/v1/responses" not in document["paths"], "these extensions are in place of the installed ones"
        greeter = server.services.states["greeter"]
        assert isinstance(greeter, Greeter)
        assert (await api.json("GET", "/api/me"))["features"] == ["greeter", "openapi"]
        await api.say(await api.chat(), model=server.scripts.model(message_of(text("Moin."))))
        for event in (greeter.ran, greeter.ended, greeter.swept):
            await event.wait()


async def test_a_call_of_an_extension_needs_a_token_as_others_do(database_url: str) -> None:
    async with serving(database_url, extensions=[GREETER]) as server, Client(server.url) as api:
        token = await server.token("ada", "send")
        assert (await api.get("/api/greeting")).status_code == 401
        assert (await api.get("/api/greeting", headers={"Authorization": f"Bearer {token}"})).status_code == 403


async def test_a_check_of_an_extension_stops_the_start(database_url: str) -> None:
    settings = Settings(_env_file=None, database_url=database_url, model="demo", greeting="demo")
    with pytest.raises(ConfigError, match="TURNSTREAM_GREETING must be no model"):
        async with running(settings, Given(extensions=[GREETER, DEMO])):
            pass


# --- tools -----------------------------------------------------------------------------------------------------------


class PlantTable(PolicyTable):
    grows: str


class Garden:
    """A toolset with a tool for each plant. `sow` adds a plant."""

    def __init__(self) -> None:
        self.plants: dict[str, Tool] = {}
        self.open = False

    def tools(self) -> Mapping[str, Tool]:
        return self.plants if self.open else {}

    def sow(self, name: str, grows: str) -> None:
        @tool(name=f"garden__{name}", read_only=True)
        async def grow() -> str:
            """Grow it."""
            return grows

        self.plants = {**self.plants, grow.spec.name: grow}

    async def __aenter__(self) -> None:
        self.open = True

    async def __aexit__(self, *_: object) -> None:
        self.open = False


def gardening(garden: Garden) -> Extension:
    def make(declarations: Declarations) -> LoadedTools:
        declarations.each("plant", lambda name, table: garden.sow(name, table.grows))
        return LoadedTools(sources=[garden], prefixes=["garden__"], connections=[garden])

    return Extension("garden", "plants", tool_sources=lambda _: [SourceKind("plant", PlantTable, make)])


async def test_tools_of_a_source_of_an_extension_come_while_the_server_runs(database_url: str, tmp_path: Path) -> None:
    file, garden = tmp_path / "tools.toml", Garden()
    file.write_text("[plant.rose]\ngrows = 'slowly'\n[policy.garden__cress]\nmax_result_chars = 200\n")
    async with serving(
        database_url, extensions=[gardening(garden), installed()["tools_file"]], tools_file=file
    ) as server:
        assert garden.open
        async with Client(server.url) as api:
            model, provider = server.scripts.provider(
                message_of(tool_use("garden__rose", {}, "a")),
                message_of(text("A rose.")),
                message_of(tool_use("garden__cress", {}, "b")),
                message_of(text("Cress.")),
            )
            first = (await api.ask(await api.chat(), model=model)).assistant
            garden.sow("cress", "fast")
            second = (await api.ask(await api.chat(), model=model)).assistant
        results = [
            block["text"] for turn in (first, second) for block in turn["blocks"] if block["type"] == "tool_result"
        ]
        assert results == ["slowly", "fast"]
        listed = [{spec.name for spec in request.tools} >= {"garden__cress"} for request in provider.requests]
        assert listed == [False, False, True, True]
    assert not garden.open


KINDS = [
    (extension.name, kind.name)
    for extension in installed().values()
    for kind in kinds_of(extension, Settings(_env_file=None))
    if kind.table is not None
]
APIS = [
    (extension.name, api.name)
    for extension in installed().values()
    for api in extension.providers(Settings(_env_file=None))
]


@pytest.mark.parametrize(("extension", "kind"), KINDS)
def test_a_table_of_an_extension_that_is_left_out_names_it(tmp_path: Path, extension: str, kind: str) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(f"[{kind}.a]\nkey = 1\n")
    others = [each for each in installed().values() if each.name != extension]
    kinds = source_kinds(Settings(_env_file=None), others)
    declarations = read_declarations(file, {}, {each.name: each.table for each in kinds if each.table})
    (left_out,) = (each for each in kinds if each.name == kind)
    with pytest.raises(ConfigError) as refused:
        left_out.make(declarations)
    assert str(refused.value) == (
        f"{file}: [{kind}.a] needs the extension {extension}, which this server leaves out: add {extension} to"
        " TURNSTREAM_EXTENSIONS."
    )


@pytest.mark.parametrize(("extension", "api"), APIS)
def test_an_api_of_an_extension_that_is_left_out_names_it(tmp_path: Path, extension: str, api: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[providers.mine]\napi = '{api}'\n")
    others = [each for each in installed().values() if each.name != extension]
    with pytest.raises(
        ConfigError, match=f"^The provider mine of the file of models needs the extension {extension}, "
    ):
        default_model(Settings(_env_file=None, models_file=file, **NO_KEYS), others)


# --- pages -----------------------------------------------------------------------------------------------------------


async def test_the_extension_of_the_page_counts(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (entry,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    page: dict[str, Any] = {"__name__": "counting"}
    exec(compile(code, "docs/extensions.md", "exec"), page)
    counting, printed = page["COUNTING"], asyncio.Queue[str]()
    page["print"] = lambda *words: printed.put_nowait(" ".join(map(str, words)))
    assert tomllib.loads(entry)["project"]["entry-points"][GROUP] == {
        counting.name: f"counting:{counting.name.upper()}"
    }
    async with serving(database_url, extensions=[counting], count_pause=0.01) as server, Client(server.url) as api:
        await api.say(await api.chat(), model=server.scripts.model(message_of(text("Moin."))))
        while await printed.get() != "1 turns have ended":
            pass


async def test_the_api_of_the_page_of_providers_answers(database_url: str, tmp_path: Path) -> None:
    page = (PAGE.parent / "providers.md").read_text(encoding="utf-8").partition("## Another API")[2]
    (code,), (table,) = (
        re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) for kind in ("python", "toml")
    )
    example: dict[str, Any] = {"__name__": "echo"}
    exec(compile(code, "docs/providers.md", "exec"), example)
    file = tmp_path / "models.toml"
    file.write_text(table, encoding="utf-8")
    settings = Settings(_env_file=None, database_url=database_url, models_file=file, **NO_KEYS)
    app = create_app(settings, extensions=[example["ECHO"], installed()["catalog"]])
    async with lifespan(app), answering(app) as url, Client(url) as api:
        assert [model["id"] for model in (await api.json("GET", "/api/models"))["models"]] == ["alps"]
        said = await api.ask(await api.chat(), "Is anybody there?")
        assert said.assistant["blocks"][0]["text"] == "Is anybody there?"


async def test_without_the_extension_the_file_of_models_names_the_apis_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[providers.mountain]\napi = "echo"\n', encoding="utf-8")
    settings = Settings(_env_file=None, models_file=file, **NO_KEYS)
    with pytest.raises(
        ConfigError, match=r"`api` of \[providers.mountain\] must be one of anthropic, .*, not 'echo'; ext"
    ):
        default_model(settings, [])


def test_a_section_is_read_from_where_the_settings_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("TURNSTREAM_GREETING=Servus\n")
    assert Settings().section(GreetingSettings).greeting == "Servus"
    assert Settings(_env_file=None).section(GreetingSettings).greeting == "Hello"
    monkeypatch.setenv("TURNSTREAM_GREETING", "Ahoj")
    assert Settings().section(GreetingSettings).greeting == "Ahoj"
    assert Settings(greeting="Moin").section(GreetingSettings).greeting == "Moin"

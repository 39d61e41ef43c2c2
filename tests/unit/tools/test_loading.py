import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from tests.support.model_apis import EXTENSIONS
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import sections
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.libraries.tool_sources.kinds import SourceKind, source_kinds
from turnstream.libraries.tool_sources.programs import SETTINGS, ToolSettings, open_toolset
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools import assembly
from turnstream.tools.assembly import load_installed, load_toolset
from turnstream.tools.sources import LoadedTools
from turnstream.tools.tool import Tool, ToolContext, tool

SOURCE = """
from contextlib import asynccontextmanager
from functools import partial

from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

events = []


@tool()
async def first() -> str:
    '''The first.'''
    return "1"


@tool()
async def second() -> str:
    '''The second.'''
    return "2"


class Holder:
    @tool()
    async def third(self) -> str:
        '''The third.'''
        return "3"


class Managed(Holder):
    async def __aenter__(self):
        events.append("opened")

    async def __aexit__(self, *error):
        events.append("closed")


class Named:
    tools = [first, second]


both = [first, second]
pair = (first, second)
holder = Holder()
managed = Managed()
number = 5
mixed = [first, 5]
undecorated = lambda city: city
bound = partial(lambda tools: tools, both)


class Source:
    def tools(self):
        return {"second": second}


toolset = Toolset([first], sources=[Source()], outputs=Outputs({"long": lambda value: "too short"}))
empty = Toolset([])


def plain():
    return first


def named(environment):
    return first if environment["FIRST"] == "yes" else second


def failing(environment):
    return first if environment["SHOP_URL"] else second


def wanting(environment, more):
    return first


async def later():
    return holder


@asynccontextmanager
async def opened():
    events.append("opened")
    yield both
    events.append("closed")
"""


@pytest.fixture(autouse=True)
def points_are_looked_for() -> Iterator[None]:
    """Clears the cache of entry points before and after the test."""
    assembly._installed_points.cache_clear()
    yield
    assembly._installed_points.cache_clear()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Creates a module in the folder in which the program was started. Returns the module's name."""
    name = f"toolset_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    del sys.modules[name]
    return name


def names(*loaded: LoadedTools) -> list[str]:
    return [tool.spec.name for each in loaded for tool in each.tools]


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("first", ["first"]),
        ("both", ["first", "second"]),
        ("pair", ["first", "second"]),
        ("holder", ["third"]),
        ("Holder", ["third"]),
        ("Managed", ["third"]),
        ("Named.tools", ["first", "second"]),
        ("plain", ["first"]),
        ("bound", ["first", "second"]),
        ("later", ["third"]),
        ("opened", ["first", "second"]),
        ("toolset", ["first"]),
        ("empty", []),
        ("named", ["second"]),
    ],
)
async def test_a_reference_leads_to_tools(
    module: str, stack: AsyncExitStack, attribute: str, expected: list[str]
) -> None:
    assert names(await load_toolset(f"{module}:{attribute}", stack, {"FIRST": "no"})) == expected


async def test_of_a_toolset_the_sources_and_the_outputs_are_taken_too(module: str) -> None:
    async with open_toolset([], ToolSettings(reference=f"{module}:toolset")) as toolset:
        assert toolset.names == ("first", "second")
        assert list(toolset.outputs.validators) == ["long"]


@pytest.mark.parametrize("attribute", ["opened", "Managed", "managed"])
async def test_context_managers_are_closed_at_the_end(module: str, attribute: str) -> None:
    async with AsyncExitStack() as stack:
        await load_toolset(f"{module}:{attribute}", stack, {"FIRST": "no"})
        assert sys.modules[module].events == ["opened"]
    assert sys.modules[module].events == ["opened", "closed"]


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("missing", "has no attribute 'missing'"),
        ("number", "an object whose methods are tools; it is int, and has none"),
        ("mixed", "must be a tool, a list of tools, a Toolset, or an object whose methods"),
        ("undecorated", "no parameter without a default but `environment`; is @tool missing?"),
        ("failing", "raised KeyError: 'SHOP_URL'"),
        ("wanting", "no parameter without a default but `environment`; is @tool missing?"),
    ],
)
async def test_a_reference_to_something_else_is_reported(
    module: str, stack: AsyncExitStack, attribute: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_TOOLSET: ") as caught:
        await load_toolset(f"{module}:{attribute}", stack, {"FIRST": "no"})
    assert words in str(caught.value)


@pytest.mark.parametrize("reference", ["tools", "tools.py:", ":tools", "a:b:c", "a b:c"])
async def test_a_reference_has_a_form(stack: AsyncExitStack, reference: str) -> None:
    with pytest.raises(ConfigError, match=r"must have the form package\.module:attribute"):
        await load_toolset(reference, stack, {})


async def test_a_missing_module_is_reported(stack: AsyncExitStack) -> None:
    with pytest.raises(ConfigError, match="cannot be imported: No module named 'no_such_module'"):
        await load_toolset("no_such_module:tools", stack, {})


async def test_a_function_that_cannot_be_a_tool_is_reported(module: str, stack: AsyncExitStack, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(
        "from turnstream.tools.tool import tool\n@tool()\nasync def bad(x): 'Bad.'\n"
    )
    with pytest.raises(ConfigError, match="the parameter x needs a type"):
        await load_toolset(f"{module}:bad", stack, {})


async def test_installed_packages_offer_tools_by_entry_points(
    module: str, stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "shop-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{assembly.GROUP}]\nb = {module}:holder\na = {module}:both\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert names(*await load_installed(stack, {})) == ["first", "second", "third"]


async def test_a_broken_entry_point_is_reported(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("shop", "no_such_module:tools", assembly.GROUP)
    monkeypatch.setattr(assembly, "entry_points", partial(_only, broken))
    with pytest.raises(ConfigError, match=r"the entry point shop of turnstream\.tools: no_such_module:tools cannot be"):
        await load_installed(stack, {})


def _only(point: EntryPoint, group: str) -> list[EntryPoint]:
    return [point]


# --- kinds of sources ------------------------------------------------------------------------------------------------


class ShelfTable(PolicyTable):
    book: str


class Shelf:
    """A source of tools in this test, which lists its tools only while it is connected."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self.connected = False

    def tools(self) -> dict[str, Tool]:
        return self._tools if self.connected else {}

    async def __aenter__(self) -> None:
        self.connected = True

    async def __aexit__(self, *_: object) -> None:
        self.connected = False


@pytest.mark.parametrize("connect", [True, False])
async def test_a_kind_of_source_makes_tools_of_its_tables_and_is_closed_at_the_end(
    tmp_path: Path, context: ToolContext, connect: bool
) -> None:
    shelves: list[Shelf] = []

    def make(declarations: Declarations) -> LoadedTools:
        @tool(name="shelf__read", read_only=True)
        async def read() -> str:
            """Read it."""
            return ", ".join(declarations.each("shelf", lambda name, table: f"{name}: {table.book}"))

        shelves.append(Shelf({"shelf__read": read}))
        return LoadedTools(sources=shelves, prefixes=["shelf__"], connections=shelves)

    file = tmp_path / "tools.toml"
    file.write_text("[shelf.left]\nbook = 'Faust'\n[policy.shelf__later]\ntimeout = 1\n")
    kinds = [SourceKind("shelf", ShelfTable, make)]
    async with open_toolset([], ToolSettings(file=file), connect_mcp=connect, kinds=kinds) as toolset:
        assert toolset.names == (("shelf__read",) if connect else ())
        if connect:
            assert (await toolset.run("shelf__read", "{}", context)).text == "left: Faust"
    assert not shelves[0].connected


async def test_the_kinds_of_the_installed_extensions_are_used_without_any_given(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text("[shelf.left]\nbook = 'Faust'\n")
    with pytest.raises(ConfigError) as refused:
        async with open_toolset([], ToolSettings(file=file)):
            pass
    listed = [f"[{kind.name}.NAME]" for kind in source_kinds(Settings(_env_file=None), EXTENSIONS) if kind.table]
    assert f"there is no table [shelf]; the tables are {', '.join(listed)}, [policy.NAME]; " in str(refused.value)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"signing_secret": "!"}, "TURNSTREAM_SIGNING_SECRET"),
        ({"allowed": "10.0.0.0/33"}, "TURNSTREAM_HTTP_TOOLS_ALLOW"),
        ({"request_tools_allowed": "10.0.0.0/33"}, "TURNSTREAM_REQUEST_TOOLS_ALLOW"),
        ({"tool_secrets": "KEY"}, "TURNSTREAM_TOOL_SECRETS"),
        ({"request_tools": "everywhere"}, "TURNSTREAM_REQUEST_TOOLS must be 'public', "),
        *(
            ({each.name: value}, f"TURNSTREAM_{SETTINGS[each.name].upper()} must be ")
            for each in fields(ToolSettings)
            for value in (0, float("nan"))
            if isinstance(each.default, int | float)
        ),
    ],
)
async def test_the_settings_that_a_program_gives_are_checked(given: dict[str, Any], variable: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}"):
        async with open_toolset([], ToolSettings(**given)):
            pass


def test_each_setting_that_a_program_may_give_is_one_of_a_server() -> None:
    every = {*Settings.model_fields, *(name for each in sections() for name in each.model_fields)}
    assert set(SETTINGS.values()) <= every
    assert set(SETTINGS) == {each.name for each in fields(ToolSettings)} - {"environment"}

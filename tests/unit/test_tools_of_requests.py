"""A request on a server with many tools: each MCP server may list up to 500 tools."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from tests.unit.tools.doubles import SCHEMA, Script
from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.schemas.requests import TurnOptions
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Limits, ToolSpec
from turnstream.kit.ids import new_id
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.scripted import ScriptedProvider
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

NOW = datetime.now(UTC)
CHAT = Chat(new_id(), "ada", None, None, {}, NOW, NOW)
MODELS = Models([ProviderModels(ScriptedProvider([]), [Model("any")])])


class Counted:
    """A source of many tools, which counts how often the tools are looked up."""

    def __init__(self, count: int) -> None:
        self._tools = {
            f"tool_{number}": Script(ToolSpec(f"tool_{number}", "Looks.", SCHEMA)) for number in range(count)
        }
        self.looks = 0

    def tools(self) -> Mapping[str, Tool]:
        self.looks += 1
        return self._tools


def looks_for(count: int, names: list[str] | None) -> int:
    source = Counted(count)
    resolver = Resolver(MODELS, Toolset([], sources=[source]), Defaults("any", None, Limits()))
    before = source.looks
    request = resolver.resolve(TurnOptions.model_validate({"tools": names}), CHAT, None)
    assert [spec.name for spec in request.tools] == (names or [f"tool_{number}" for number in range(count)])
    return source.looks - before


def test_a_request_looks_at_the_tools_of_a_source_as_often_whatever_their_number() -> None:
    named = [f"tool_{number}" for number in range(150)]
    assert looks_for(500, None) == looks_for(5, None)
    assert looks_for(500, named) == looks_for(5, named[:2])


def test_a_tool_that_no_source_has_is_refused_by_its_place() -> None:
    resolver = Resolver(MODELS, Toolset([], sources=[Counted(3)]), Defaults("any", None, Limits()))
    with pytest.raises(RequestRefused, match="tool_7") as refused:
        resolver.resolve(TurnOptions.model_validate({"tools": ["tool_1", "tool_7"]}), CHAT, None)
    assert refused.value.field == "tools.1"

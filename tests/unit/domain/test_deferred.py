"""Calls of the generic tool as calls of the tools that they name."""

from uuid import UUID

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.deferred import CALL_TOOL, as_named, input_of, with_named_calls
from turnstream.domain.kinds import TEXT, TOOL_USE
from turnstream.domain.turns import ToolSpec, Turn, TurnRequest

TOOLS = (
    ToolSpec("bake", "", "{}", deferred=True),
    ToolSpec("ring", "", "{}"),
    ToolSpec("theirs", "", "{}", client=True),
    ToolSpec("output", "", "{}", role="output"),
    ToolSpec(CALL_TOOL, "", "{}"),
)


def call(text: str, name: str = CALL_TOOL, type: str = TOOL_USE) -> Block:
    return Block(0, 1, 1, type, text, tool_use_id="a", name=name)


@pytest.mark.parametrize(
    ("text", "name", "input"),
    [
        ('{"name": "bake", "input": {"of": [1.0, "ä"]}}', "bake", '{"of": [1.0, "\\u00e4"]}'),
        ('{"input": {}, "name": "ring", "more": 1}', "ring", "{}"),
        ('{"name": "bake"}', "bake", "{}"),
        ('{"name": "bake", "input": "no object"}', "bake", '"no object"'),
    ],
)
def test_a_call_is_one_of_the_tool_that_it_names_with_its_input(text: str, name: str, input: str) -> None:
    named = as_named(call(text), TOOLS)
    assert (named.name, named.text, named.tool_use_id) == (name, input, "a")
    assert input_of(call(text), name) == input


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"input": {}}',
        '{"name": 1}',
        *(f'{{"name": "{name}"}}' for name in ("x", "theirs", "output", CALL_TOOL)),
    ],
)
def test_a_call_that_names_no_tool_of_this_server_stays_as_it_is(text: str) -> None:
    assert as_named(call(text), TOOLS) == call(text)
    assert input_of(call(text), CALL_TOOL) == text


def test_only_calls_of_the_generic_tool_are_read() -> None:
    text = '{"name": "bake", "input": {}}'
    for other in (call(text, name="ring"), call(text, type=TEXT)):
        assert as_named(other, TOOLS) == other
    assert input_of(call(text, name="ring"), "ring") == text


def turn_with(tools: tuple[ToolSpec, ...] | None) -> Turn:
    request = None if tools is None else TurnRequest("m", tools=tools)
    calls = (call('{"name": "ring"}'), call("{", name="ring"))
    return Turn(UUID(int=1), UUID(int=2), None, "assistant", "running", request=request, blocks=calls)


@pytest.mark.parametrize("tools", [None, (), TOOLS[1:]])
def test_a_turn_without_deferred_tools_is_not_changed(tools: tuple[ToolSpec, ...] | None) -> None:
    turn = turn_with(tools)
    assert with_named_calls(turn) is turn


def test_the_calls_of_a_turn_with_deferred_tools_are_those_of_the_named_tools() -> None:
    named = with_named_calls(turn_with(TOOLS))
    assert [(block.name, block.text) for block in named.blocks] == [("ring", "{}"), ("ring", "{")]

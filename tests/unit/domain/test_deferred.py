"""A call of the generic tool is handled as a call of the tool that its input names."""

from dataclasses import replace
from uuid import UUID

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.compaction import estimate_size
from turnstream.domain.deferred import CALL_TOOL, NamedCalls, input_of
from turnstream.domain.kinds import TEXT, TOOL_USE
from turnstream.domain.turns import ToolSpec, Turn, TurnRequest

TOOLS = (
    ToolSpec("bake", "", "{}", deferred=True),
    ToolSpec("ring", "", "{}"),
    ToolSpec("theirs", "", "{}", client=True),
    ToolSpec("output", "", "{}", role="output"),
    ToolSpec(CALL_TOOL, "", "{}"),
)
REQUEST = TurnRequest("m", tools=TOOLS)


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
    named = NamedCalls(REQUEST).call(call(text))
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
    assert NamedCalls(REQUEST).call(call(text)) == call(text)
    assert input_of(call(text), CALL_TOOL) == text


def test_only_calls_of_the_generic_tool_are_read() -> None:
    text = '{"name": "bake", "input": {}}'
    for other in (call(text, name="ring"), call(text, type=TEXT)):
        assert NamedCalls(REQUEST).call(other) == other
    assert input_of(call(text, name="ring"), "ring") == text


def test_without_deferred_tools_a_tool_of_that_name_is_another_one() -> None:
    text = '{"name": "ring"}'
    assert NamedCalls(TurnRequest("m", tools=TOOLS[1:])).call(call(text)) == call(text)
    assert NamedCalls(None).call(call(text)) == call(text)


def turn_with(*blocks: Block) -> Turn:
    return Turn(UUID(int=1), UUID(int=2), None, "assistant", "running", blocks=blocks)


def test_the_calls_of_a_turn_are_those_of_the_named_tools_and_each_is_read_once() -> None:
    calls = turn_with(call('{"name": "ring"}'), call("{", name="ring"))
    named = NamedCalls(REQUEST)
    first, second = named.turn(calls), named.turn(calls)
    assert [(block.name, block.text) for block in first.blocks] == [("ring", "{}"), ("ring", "{")]
    assert first.blocks[0] is second.blocks[0]
    assert NamedCalls(None).turn(calls) is calls


def test_a_call_that_replaces_one_with_the_same_id_is_read_again() -> None:
    named = NamedCalls(REQUEST)
    assert [named.call(call(f'{{"name": "{name}"}}')).name for name in ("ring", "bake")] == ["ring", "bake"]


def test_definitions_of_deferred_tools_are_in_no_request_and_no_estimate() -> None:
    assert REQUEST.defined_tools == TOOLS[1:]
    long = replace(REQUEST, tools=(replace(TOOLS[0], description="Bakes. " * 1000), *TOOLS[1:]))
    sizes = [estimate_size([replace(turn_with(), request=request)]) for request in (REQUEST, long)]
    assert sizes[0] == sizes[1]

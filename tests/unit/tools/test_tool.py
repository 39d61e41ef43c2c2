import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from turnstream.tools.tool import File, FunctionTool, Outcome, OutcomeKind, ToolContext, tool, tools_of
from turnstream.tools.toolset import Toolset


@dataclass
class Place:
    name: str
    height: float = 0.0


class Filter(BaseModel):
    field: str = Field(description="what to compare")
    above: int | None = None


def schema(made: FunctionTool) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.spec.input_schema)
    Draft202012Validator.check_schema(found)
    return found


@tool(timeout=5.0, read_only=True)
async def search(
    context: ToolContext, query: Annotated[str, "what to look for"], limit: int = 10
) -> list[dict[str, Any]]:
    """Search the shelves.

    :param limit: how many to find
    :param query: not used, the annotation says it
    """
    context.progress(f"looking for {query}")
    return [{"query": query, "limit": limit, "owner": context.owner}]


def test_a_spec_is_made_from_signature_and_docstring() -> None:
    assert (search.spec.name, search.spec.description) == ("search", "Search the shelves.")
    assert (search.policy.timeout, search.spec.read_only) == (5.0, True)
    assert schema(search) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for"},
            "limit": {"type": "integer", "description": "how many to find", "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


async def test_a_tool_gets_the_context_and_its_defaults(context: ToolContext, progress: list[str]) -> None:
    outcome = await search(context, '{"query": "tides"}')
    assert json.loads(outcome.text) == [{"query": "tides", "limit": 10, "owner": "ada"}]
    assert not outcome.is_error
    assert progress == ["looking for tides"]


def test_optional_literal_and_list_parameters_have_their_schema() -> None:
    @tool()
    async def mix(
        note: str | None = None,
        mode: Literal["fast", "slow"] = "fast",
        tags: Annotated[list[str], Field(max_length=3, description="at most three")] = [],  # noqa: B006
    ) -> None:
        """Mix."""

    assert schema(mix)["properties"] == {
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "mode": {"enum": ["fast", "slow"], "type": "string", "default": "fast"},
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": 3,
            "description": "at most three",
            "default": [],
        },
    }


async def test_nested_dataclasses_and_models_arrive_as_their_types(context: ToolContext) -> None:
    got: list[object] = []

    @tool()
    async def measure(place: Place, filters: list[Filter], on: date) -> None:
        """Measure."""
        got.extend([place, *filters, on])

    place = schema(measure)["$defs"]["Place"]
    assert place["properties"]["height"] == {"type": "number", "default": 0.0}
    assert schema(measure)["properties"]["filters"]["items"] == {"$ref": "#/$defs/Filter"}
    await measure(context, '{"on": "2026-11-02", "filters": [{"field": "a"}], "place": {"name": "quay"}}')
    assert got == [Place("quay", 0.0), Filter(field="a"), date(2026, 11, 2)]


def test_a_description_in_the_type_overrides_the_docstring() -> None:
    @tool()
    async def say(
        first: Annotated[int, Field(ge=0, description="from the Field")],
        second: Annotated[int, "from the string"],
        third: Annotated[int, Field(ge=0)],
    ) -> None:
        """Say.

        Args:
            first: from the docstring
            second: from the docstring
            third: from the docstring
        """

    descriptions = {name: part["description"] for name, part in schema(say)["properties"].items()}
    assert descriptions == {"first": "from the Field", "second": "from the string", "third": "from the docstring"}


async def test_parameters_may_be_called_like_members_of_a_pydantic_model(context: ToolContext) -> None:
    @tool()
    async def describe(schema: str, copy: bool, model_config: int, json: str = "no") -> dict[str, object]:
        """Describe."""
        return {"schema": schema, "copy": copy, "model_config": model_config, "json": json}

    assert list(schema(describe)["properties"]) == ["schema", "copy", "model_config", "json"]
    sent = {"schema": "s", "copy": True, "model_config": 1, "json": "j"}
    outcome = await describe(context, json.dumps(sent))
    assert json.loads(outcome.text) == sent


async def test_a_parameter_called_title_keeps_its_schema_and_a_tool_may_take_nothing(
    context: ToolContext,
) -> None:
    @tool(name="rename-it")
    async def rename(title: str) -> None:
        """Rename."""

    @tool()
    async def tick() -> int:
        """Tick."""
        return 1

    assert rename.spec.name == "rename-it"
    assert schema(rename)["properties"] == {"title": {"type": "string"}}
    assert schema(tick) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert await tick(context, "{}") == Outcome("1")


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    @tool()
    async def increase(self, context: ToolContext, by: int = 1) -> int:
        """Increase the counter."""
        self.value += by
        return self.value

    @tool(read_only=True)
    async def current(self) -> int:
        """Tell the counter."""
        return self.value


class LoudCounter(Counter):
    @tool(read_only=True)
    async def current(self) -> str:
        """Tell the counter, loudly."""
        return f"{self.value}!"


async def test_methods_are_tools_of_their_own_instance(context: ToolContext) -> None:
    first, second = Counter(0), Counter(100)
    increase, current = tools_of(first)
    assert (increase.spec.name, current.spec.name) == ("increase", "current")
    assert json.loads(increase.spec.input_schema)["properties"].keys() == {"by"}
    assert (await increase(context, '{"by": 5}')).text == "5"
    assert (await tools_of(second)[0](context, "{}")).text == "101"
    assert (await current(context, "{}")).text == "5"


async def test_a_subclass_replaces_a_tool_in_its_place(context: ToolContext) -> None:
    assert [found.spec.name for found in tools_of(LoudCounter(3))] == ["increase", "current"]
    assert (await tools_of(LoudCounter(3))[1](context, "{}")).text == "3!"
    assert isinstance(Counter.current, FunctionTool)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("words stay words", "words stay words"),
        ({"b": 1, "a": [True, None]}, '{"b":1,"a":[true,null]}'),
        (Place("quay", float("nan")), '{"name":"quay","height":null}'),
        (date(2026, 11, 2), '"2026-11-02"'),
        ({"name": "\ud800"}, '{"name":"\ud800"}'),
        (0, "0"),
        (None, "The call succeeded and returned nothing."),
        ("", "The call succeeded and returned nothing."),
        (Outcome("my own", is_error=True), "my own"),
    ],
)
async def test_a_result_that_is_not_text_is_written_as_json(context: ToolContext, result: object, text: str) -> None:
    @tool()
    async def give() -> object:
        """Give it."""
        return result

    assert (await give(context, "{}")).text == text


@pytest.mark.parametrize(
    ("is_error", "kind", "expected"),
    [
        (False, "ok", Outcome("x", is_error=False, kind="ok")),
        (True, "ok", Outcome("x", is_error=True, kind="error")),
        (False, "timeout", Outcome("x", is_error=True, kind="timeout")),
    ],
)
def test_an_outcome_is_an_error_exactly_when_its_kind_is_not_ok(
    is_error: bool, kind: OutcomeKind, expected: Outcome
) -> None:
    made = Outcome("x", is_error, kind)
    assert made == expected
    assert made.is_error == (made.kind != "ok")


def plain() -> None:
    """Not async."""


async def silent() -> None: ...


async def untyped(x) -> None:  # type: ignore[no-untyped-def]
    """What is x?"""


async def open_ended(*values: int) -> None:
    """How many?"""


async def unspeakable(call: Callable[[], Awaitable[None]]) -> None:
    """Nobody can send a function."""


async def misplaced(limit: int = Field(1, ge=1)) -> None:
    """The default is a Field."""


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (plain, "must be `async def`"),
        (silent, "needs a docstring"),
        (untyped, "parameter x needs a type"),
        (open_ended, "a model sends arguments by name"),
        (unspeakable, "unspeakable have no JSON schema"),
        (misplaced, "Field of limit must be part of its type"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_at_once(function: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        tool()(function)
    with pytest.raises(TypeError, match=complaint):
        tool(function)


async def test_a_decorator_without_options_needs_no_parentheses(context: ToolContext) -> None:
    @tool
    async def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    assert shout.spec.name == "shout"
    assert (await shout(context, '{"text": "a"}')).text == "A"


def test_a_name_that_providers_refuse_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="1-64 letters"):
        tool(name="two words")(search.function)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (File(b"x"), Outcome("", more=(File(b"x"),))),
        (["See:", File(b"x"), {"n": 1}], Outcome("See:", more=(File(b"x"), '{"n":1}'))),
        ((File(b"x"), File(b"y")), Outcome("", more=(File(b"x"), File(b"y")))),
        (["no", "file"], Outcome('["no","file"]')),
    ],
)
async def test_files_keep_their_places_between_texts(context: ToolContext, returned: object, expected: Outcome) -> None:
    @tool()
    async def show() -> object:
        """Show."""
        return returned

    assert await show(context, "{}") == expected


@pytest.mark.parametrize("content", [memoryview(b"x"), "a string", None])
async def test_a_file_of_something_else_is_the_mistake_of_the_call(context: ToolContext, content: Any) -> None:
    @tool()
    async def show() -> object:
        """Show."""
        return File(content)

    outcome = await Toolset([show]).run("show", "{}", context)
    assert (outcome.text, outcome.kind) == ("The tool show failed (TypeError).", "error")

"""The error texts for an input that does not match the schema, and the parsing of docstrings."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnstream.tools.arguments import split_docstring
from turnstream.tools.tool import ToolContext, tool


class Filter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    above: int | str


@dataclass
class Page:
    number: int


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


@tool()
async def find(
    query: str,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
    order: Literal["new", "old"] = "new",
    filters: list[Filter] = [],  # noqa: B006
    page: Page | None = None,
    even: Annotated[int, AfterValidator(_even)] = 0,
) -> str:
    """Find."""
    return query


@tool()
async def tick() -> str:
    """Tick."""
    return "tock"


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ("{}", "`query` is required."),
        ('{"query": 5}', "`query`: Input should be a valid string (got 5)."),
        (
            '{"query": "a", "limit": "many"}',
            '`limit`: Input should be a valid integer, unable to parse string as an integer (got "many").',
        ),
        ('{"query": "a", "limit": 51}', "`limit`: Input should be less than or equal to 50 (got 51)."),
        ('{"query": "a", "limit": null}', "`limit`: Input should be a valid integer (got null)."),
        ('{"query": "a", "order": "up"}', "`order`: Input should be 'new' or 'old' (got \"up\")."),
        (
            '{"query": "a", "colour": 1}',
            "There is no `colour`; the arguments are query, limit, order, filters, page, even.",
        ),
        ('{"query": "a", "filters": [{"above": 1}, {}]}', "`filters.1.above` is required."),
        ('{"query": "a", "filters": [{"above": 1, "below": 2}]}', "There is no `filters.0.below`."),
        ('{"query": "a", "page": {"number": "x"}}', "`page.number`: Input should be a valid integer"),
        ('{"query": "a", "even": 3}', "`even`: must be even (got 3)."),
        ('["a"]', "`input`: Input should be an object"),
        ('{"query": "a"', "The input is not valid JSON: EOF while parsing an object"),
        ('{"query": "\\ud800"}', "The input is not valid JSON:"),
    ],
)
async def test_an_error_names_argument_and_expected_value(context: ToolContext, sent: str, complaint: str) -> None:
    outcome = await find(context, sent)
    assert outcome.kind == "bad_input"
    assert outcome.text.startswith("The input of find is not right. ")
    assert complaint in outcome.text
    assert "pydantic" not in outcome.text
    assert "http" not in outcome.text
    assert "\n" not in outcome.text


async def test_the_branches_of_a_union_are_not_part_of_the_path(context: ToolContext) -> None:
    outcome = await find(context, '{"query": "a", "filters": [{"above": []}]}')
    assert outcome.text.count("`filters.0.above`: ") == 2


async def test_up_to_ten_mistakes_are_reported_at_once(context: ToolContext) -> None:
    outcome = await find(context, '{"limit": 0, "order": 1}')
    assert [f"`{name}`" in outcome.text for name in ("query", "limit", "order")] == [True] * 3
    sent = '{"query": "a", ' + ", ".join(f'"x{number}": 1' for number in range(13)) + "}"
    outcome = await find(context, sent)
    assert outcome.text.count("There is no") == 10
    assert outcome.text.endswith("There are 3 more errors.")


async def test_a_long_value_is_not_repeated_in_full(context: ToolContext) -> None:
    outcome = await find(context, '{"query": ["' + "a" * 10_000 + '"]}')
    assert len(outcome.text) < 300


async def test_an_input_for_a_tool_without_arguments_is_refused(context: ToolContext) -> None:
    outcome = await tick(context, '{"now": true}')
    assert outcome.text == "The input of tick is not right. There is no `now`; there are no arguments."


async def test_a_number_in_a_string_is_accepted(context: ToolContext) -> None:
    assert (await find(context, '{"query": "a", "limit": "5"}')).text == "a"


# --- docstrings -------------------------------------------------------------------------------------------------------

GOOGLE = """Find things.

More about it.

Args:
    query: what to look for,
        in a few words
    limit (int, optional): how many

Returns: a list."""

FIELDS = """Find things.

:param query: what to look for,
    in a few words
:param int limit: how many
:returns: a list"""


@pytest.mark.parametrize("text", [GOOGLE, FIELDS])
def test_the_parameter_lines_are_taken_out_of_the_description(text: str) -> None:
    description, parameters = split_docstring(text)
    assert parameters == {"query": "what to look for, in a few words", "limit": "how many"}
    assert description.startswith("Find things.")
    assert description.endswith("a list" if text is FIELDS else "a list.")
    assert "limit" not in description


def test_prose_with_colons_stays_as_it_is() -> None:
    text = "Convert: metres to feet.\n\nNote: rounding is up.\n    indented: too"
    assert split_docstring(text) == (text, {})


def test_an_args_section_at_the_end_and_an_empty_docstring() -> None:
    assert split_docstring("Do it.\n\nParameters:\n  a: one\n\n  b: two\n") == (
        "Do it.",
        {"a": "one", "b": "two"},
    )
    assert split_docstring("") == ("", {})

import json
from dataclasses import dataclass
from datetime import date
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnstream.tools.serialize import as_text, serialize
from turnstream.tools.tool import ToolContext, tool

words = st.text(st.characters(categories=["L", "N"]), min_size=1)
scalars = st.none() | st.booleans() | st.integers() | words
nested = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=20)


@dataclass
class Lesson:
    number: int
    title: str


class Course(BaseModel):
    title: str
    starts: date
    lessons: list[Lesson]
    tags: list[str] = []


COURSE = Course(title="Tides", starts=date(2026, 11, 2), lessons=[Lesson(1, "The moon"), Lesson(2, "The sun")])


def test_nested_data_is_written_as_a_person_would_note_it() -> None:
    assert as_text({"course": COURSE, "open": True, "teacher": None}) == dedent(
        """\
        course:
          title: Tides
          starts: 2026-11-02
          lessons:
            - number: 1
              title: The moon
            - number: 2
              title: The sun
          tags: (empty)
        open: yes
        teacher: none"""
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, "two", [3, 4], {}], "- 1\n- two\n- - 3\n  - 4\n- (empty)"),
        ({"note": "two\n\nlines"}, "note:\n  two\n\n  lines"),
        ({"one": {"two": 3}}, "one:\n  two: 3"),
        ({"list": [1]}, "list:\n  - 1"),
        ({"nothing": ""}, "nothing:"),
        ({}, "(empty)"),
        ([], "(empty)"),
        (0, "0"),
        (1.5, "1.5"),
        ({"name": "\ud800"}, "name: \ud800"),
    ],
)
def test_each_shape_has_its_text(value: object, text: str) -> None:
    assert as_text(value) == text


def leaves(value: object) -> list[str]:
    match value:
        case dict():
            return [word for key, inner in value.items() for word in [key, *leaves(inner)]]
        case list():
            return [word for inner in value for word in leaves(inner)]
        case str():
            return [value]
        case _:
            return []


@given(nested)
def test_every_text_keeps_its_order(value: object) -> None:
    text, at = as_text(value), 0
    for word in leaves(value):
        at = text.index(word, at) + len(word)


@given(nested)
def test_json_is_compact_and_loses_nothing(value: object) -> None:
    text = serialize(value, "json")
    assert json.loads(text) == value
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def test_a_tool_chooses_the_form_of_its_results(context: ToolContext) -> None:
    @tool(results="text")
    async def outline() -> Course:
        """Outline a course."""
        return COURSE

    @tool(results="json")
    async def course() -> Course:
        """Tell a course."""
        return COURSE

    @tool(results="text")
    async def sentence() -> str:
        """Say something."""
        return "a: sentence"

    assert (await outline(context, "{}")).text == as_text(COURSE)
    assert (await course(context, "{}")).text == COURSE.model_dump_json()
    assert (await sentence(context, "{}")).text == "a: sentence"

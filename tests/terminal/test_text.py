from typing import Any

import pytest

from turnstream_terminal.text import (
    duration,
    has_huge_table,
    indented_json,
    json_line,
    printable,
    same_json,
    sentence,
    short_input,
)


def test_invisible_characters_of_arguments_are_escaped() -> None:
    assert json_line({"to": "a\u202eb\u00a0c\x9b"}) == '{"to": "a\\u202eb\\u00a0c\\u009b"}'
    assert json_line({"to": "größer 😀"}) == '{"to": "größer 😀"}'
    assert indented_json({"to": "one\ntwo"}) == '{\n  "to": "one\\ntwo"\n}'
    assert indented_json("no JSON\x1b[2J") == "no JSON\\u001b[2J"


def test_a_change_of_type_is_a_change() -> None:
    assert same_json({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not same_json({"a": 1}, {"a": True})
    assert not same_json({"a": 1}, {"a": 1.0})


def test_control_characters_are_replaced() -> None:
    assert printable("a\x1b[2Jb\r\nc\td\x07\x9b") == "a\ufffd[2Jb\nc\td\ufffd\ufffd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"query": "rule of twelfths", "limit": 3}, 'query="rule of twelfths", limit=3'),
        ({"text": "x" * 100}, 'text="' + "x" * 57 + '…"'),
        ({"lines": ["a\nb"]}, 'lines=["a\\nb"]'),
        ({}, ""),
        (None, ""),
        ("not JSON", '"not JSON"'),
    ],
)
def test_inputs_are_abbreviated(value: Any, shown: str) -> None:
    assert short_input(value) == shown


@pytest.mark.parametrize(("seconds", "text"), [(0.25, "0.2 s"), (9.9, "9.9 s"), (12.3, "12 s"), (125.0, "2 min 5 s")])
def test_durations_are_rounded_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("text", ["it is too late", "It is too late."])
def test_a_sentence_begins_and_ends_like_one(text: str) -> None:
    assert sentence(text) == "It is too late."


@pytest.mark.parametrize(
    ("markdown", "is_huge"),
    [
        ("|a" * 2000 + "|\n" + "|-" * 2000 + "|\n" + "|b\n" * 400, True),
        ("words\n\n> |a|b|\n> |:-|-:|\n" + "> |c|d|\n" * 3000, True),
        (("|a" * 100 + "|\n" + "|-" * 100 + "|\n" + "|b\n" * 30 + "\n") * 3, True),
        ("|a|b|\n|-|-|\n" + "|c|d|\n" * 100, False),
        ("a | b\n--|--\nc | d\n\n" + "words | words\n" * 9000, False),
        ("# Title\n\n---\n" + "- item\n" * 9000, False),
    ],
)
def test_a_table_with_thousands_of_cells_is_noticed_before_it_is_parsed(markdown: str, is_huge: bool) -> None:
    assert has_huge_table(markdown) is is_huge

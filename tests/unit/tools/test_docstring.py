import pytest

from app.tools.arguments import split_docstring

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

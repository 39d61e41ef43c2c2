import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.domain.cursor import START, Cursor

CURSORS = st.builds(
    Cursor, st.integers(0, 999_999_999), st.integers(0, 999_999_999), st.integers(0, 999_999_999_999_999)
)


@given(CURSORS)
def test_a_cursor_that_was_handed_out_is_read_back(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor


@given(CURSORS, CURSORS)
def test_cursors_compare_by_attempt_then_place_then_offset(left: Cursor, right: Cursor) -> None:
    assert (left < right) == (tuple(left) < tuple(right))
    assert left >= START


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1-2",
        "1-2-3-4",
        "1-2-x",
        "-1-2-3",
        "1-2--3",
        "+1-2-3",
        " 1-2-3",
        "1-2-3\n",
        "1-2-3 ",
        "01-2-3",
        "1-02-3",
        "1-2-03",
        "1_0-2-3",
        "1.0-2-3",
        "\u0661-\u0662-\u0663",
        "1-2-\u0663",
        "\u00b2-2-3",
        "1-2-1000000000000000",
        "1000000000-2-3",
        "1-2-3\x00",
    ],
)
def test_a_text_never_sent_as_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a cursor is the id of an event, such as 1-4-120"):
        Cursor.parse(text)


@given(st.text())
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        cursor = Cursor.parse(text)
    except ValueError:
        return
    assert str(cursor) == text

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.kit.text import sentence, storable, unstorable

ANY_TEXT = st.text(st.characters(categories=None))


@pytest.mark.parametrize("text", ["", "plain", "é", "🚢", "a\tb\r\n", "\x01\x7f", "\ufffd", "\ufeff"])
def test_text_accepted_by_postgres_is_unchanged(text: str) -> None:
    assert unstorable(text) is None
    assert storable(text) is text


@pytest.mark.parametrize(
    ("text", "why", "stored"),
    [
        ("a\x00b", "contains a NUL character at offset 1", "a\ufffdb"),
        ("é\x00", "contains a NUL character at offset 1", "é\ufffd"),
        ("🚢\ud83d", "contains a lone surrogate at offset 1", "🚢\ufffd"),
        ("\udc00\x00", "contains a lone surrogate at offset 0", "\ufffd\ufffd"),
        ("\ud83d\ude00", "contains a lone surrogate at offset 0", "\ufffd\ufffd"),
    ],
)
def test_text_refused_by_postgres_is_named_and_replaced(text: str, why: str, stored: str) -> None:
    assert unstorable(text) == why
    assert storable(text) == stored


@given(ANY_TEXT)
def test_any_text_can_be_stored_without_moving_a_character(text: str) -> None:
    stored = storable(text)
    stored.encode()
    assert unstorable(stored) is None
    assert len(stored) == len(text)
    assert storable(stored) == stored
    assert all(now in (then, "\ufffd") for now, then in zip(stored, text, strict=True))


@given(ANY_TEXT, ANY_TEXT)
def test_pieces_are_made_storable_as_the_whole_is(left: str, right: str) -> None:
    assert storable(left) + storable(right) == storable(left + right)


@pytest.mark.parametrize(("text", "whole"), [("Overloaded", "Overloaded."), ("No.", "No."), ("Why?", "Why?")])
def test_a_sentence_ends_with_a_mark(text: str, whole: str) -> None:
    assert sentence(text) == whole

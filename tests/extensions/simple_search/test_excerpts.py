import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.libraries.searches.excerpts import line_of, pieces_of, without_markdown
from turnstream.libraries.searches.search import ExcerptPiece

WORDS = st.lists(st.text(alphabet="abİßς.*(", min_size=1, max_size=4), min_size=1, max_size=8)


def marked(text: str, *words: str) -> str:
    return "".join(f"[{piece.text}]" if piece.found else piece.text for piece in pieces_of(text, words))


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("The lighthouse", ["LIGHThouse"], "The [lighthouse]"),
        ("a light, a lighthouse", ["light", "lighthouse"], "a [light], a [lighthouse]"),
        ("Ärger und ÄRGER", ["ärger"], "[Ärger] und [ÄRGER]"),
        ("100% (sure)", ["%", "(sure)"], "100[%] [(sure)]"),
        ("aaa", ["a"], "[a][a][a]"),
        ("no such word", ["other"], "no such word"),
        ("", ["word"], ""),
    ],
)
def test_words_are_found_as_they_are_whatever_their_capitals(text: str, words: list[str], shown: str) -> None:
    assert marked(text, *words) == shown


@pytest.mark.parametrize(
    ("text", "words", "plain"),
    [
        ("## The **light**house", ["light"], "The light**house"),
        ("- *one* `light`\n1. __two__ ~~three~~", ["light"], "one light\ntwo three"),
        ("> See [the light](https://example.org/x) there", ["light"], "See the light there"),
        ("See [this](https://example.org/light)", ["light"], "See [this](https://example.org/light)"),
        ("| light | sea |\n|---|:--:|\n| on | deep |", ["light"], "light | sea\n\non | deep"),
        ("```python\nlight = 2**3 * snake_case\n```", ["light"], "\nlight = 2**3 * snake_case\n"),
        ("a **bold** word", ["**"], "a **bold** word"),
        ("above\n---\nbelow", ["above"], "above\n\nbelow"),
        ("plain words, 5 * 3 - 2 # no", ["plain"], "plain words, 5 * 3 - 2 # no"),
    ],
)
def test_signs_of_markdown_are_left_out_unless_they_are_searched_for(text: str, words: list[str], plain: str) -> None:
    assert without_markdown(text, words) == plain


@given(st.text(alphabet="ab*_`#|[]() \n-"), WORDS)
def test_no_word_is_lost_with_the_signs(text: str, words: list[str]) -> None:
    plain = without_markdown(text, words).lower()
    assert all(word.lower() in plain for word in words if word.lower() in text.lower())


@given(st.text(), WORDS)
def test_pieces_join_to_the_text_and_each_match_is_one_of_the_words(text: str, words: list[str]) -> None:
    pieces = pieces_of(text, words)
    assert "".join(piece.text for piece in pieces) == text
    assert ExcerptPiece("", found=False) not in pieces
    assert all(len(piece.text) in map(len, words) for piece in pieces if piece.found)


@pytest.mark.parametrize(
    ("window", "before", "after", "line"),
    [
        ("all of\n\n it ", False, False, "all of it"),
        ("alf a word, and the har", True, True, "… a word, and the …"),
        (" whole words ", True, True, "… whole words …"),
        ("字" * 30, True, True, f"… {'字' * 30} …"),
        ("x" * 21 + " y", True, False, f"… {'x' * 21} y"),
    ],
)
def test_a_window_is_one_line_without_the_words_that_were_cut_through(
    window: str, before: bool, after: bool, line: str
) -> None:
    assert line_of(window, cut_before=before, cut_after=after) == line

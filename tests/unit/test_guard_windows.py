"""Windows of guards: the text that is held back and the text that is released do not depend on how deltas split the
text.
"""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.libraries.guards.guard import (
    Guard,
    Mask,
    Pass,
    Passage,
    Replace,
    Ruling,
    TextSpan,
    Window,
    masked,
    merged,
)

SECRET = re.compile(r"(?<!\w)k[0-9]{2,6}(?!\w)|x+y")


async def unused(_: Passage) -> Ruling:
    raise AssertionError


def guard(window: int | None, overlap: int) -> Guard:
    return Guard("secrets", unused, frozenset({"text"}), window, overlap)


def spans_of(text: str) -> list[TextSpan]:
    return [TextSpan(*found.span(), "#") for found in SECRET.finditer(text)]


def released(window: Window, pieces: Sequence[str]) -> list[str]:
    """Returns the text that is released after each piece and at the end."""
    shown: list[str] = []
    for place, piece in enumerate([*pieces, ""]):
        final = place == len(pieces)
        window.add(piece)
        if window.is_due(final=final):
            text, _ = window.passage()
            passed = window.apply(Mask(spans_of(text)), final=final)
            if passed is None:
                text, _ = window.whole()
                shown[:] = [window.apply_whole(Mask(spans_of(text)), final=final)]
            else:
                shown.append(passed)
    return shown


@given(
    st.lists(st.text("k0123 xy.\n", max_size=8), max_size=12),
    st.one_of(st.none(), st.integers(0, 10)),
    st.integers(8, 20),
)
def test_the_text_that_passes_is_the_same_for_every_cut_and_window(
    pieces: list[str], size: int | None, overlap: int
) -> None:
    whole = "".join(pieces)
    if any(end - start > overlap for start, end, _ in spans_of(whole)):
        return
    assert "".join(released(Window(guard(size, overlap)), pieces)) == masked(whole, spans_of(whole))


@given(st.lists(st.text("k0123 .", max_size=8), max_size=12), st.integers(0, 10))
def test_at_no_time_has_a_character_passed_that_a_check_of_the_whole_forbids(pieces: list[str], size: int) -> None:
    right = masked("".join(pieces), spans_of("".join(pieces)))
    window, shown = Window(guard(size, 8)), ""
    for place, piece in enumerate([*pieces, ""]):
        window.add(piece)
        final = place == len(pieces)
        if window.is_due(final=final):
            text, _ = window.passage()
            passed = window.apply(Mask(spans_of(text)), final=final)
            shown += passed or ""
            assert right.startswith(shown)
    assert shown == right


def test_a_span_that_is_longer_than_the_overlap_is_found_in_the_whole_text() -> None:
    window = Window(guard(4, 2))
    window.add("xxxxxx")
    assert window.apply(Pass(), final=False) == "xxxx"
    window.add("xxy ok")
    text, start = window.passage()
    assert (text, start) == ("xxxxxxy ok"[-10:], 2)
    assert window.apply(Mask(spans_of(text)), final=False) is None
    assert window.whole() == ("xxxxxxxxy ok", 0)
    assert window.apply_whole(Mask(spans_of(window.whole()[0])), final=False) == "# "
    assert window.apply(Pass(), final=True) == "ok"


def test_a_window_holds_text_back_until_it_is_full_and_without_a_size_to_the_end() -> None:
    small, whole = Window(guard(5, 0)), Window(guard(None, 0))
    for window in (small, whole):
        window.add("four")
        assert not window.is_due(final=False)
        window.add("!")
    assert small.is_due(final=False)
    assert not whole.is_due(final=False)
    assert whole.is_due(final=True)
    assert not Window(guard(5, 0)).is_due(final=True)


def test_a_check_says_how_much_of_the_end_it_has_not_decided() -> None:
    window = Window(guard(0, 100))
    window.add("one two th")
    assert window.apply(Pass(undecided=2), final=False) == "one two "
    assert window.passage() == ("one two th", 8)
    window.add("ree")
    assert window.apply(Mask([TextSpan(8, 13)], undecided=0), final=False) == "[masked]"


def test_a_replacement_takes_the_place_of_all_that_is_held() -> None:
    window = Window(guard(0, 3))
    window.add("bad words")
    assert window.apply(Replace("…"), final=False) == "…"
    window.add("good")
    assert window.passage() == ("rdsgood", 3)
    assert window.apply(Pass(), final=True) == "good"


def test_the_text_that_a_block_continues_is_context_and_does_not_pass_again() -> None:
    window = Window(guard(0, 4), before="see k1")
    window.add("2 and")
    assert window.passage() == ("e k12 and", 4)
    assert window.apply(Mask([TextSpan(2, 5, "#")]), final=True) is None
    assert window.whole() == ("e k12 and", 4)
    assert window.apply_whole(Mask([TextSpan(2, 5, "#")]), final=True) == "# and"


def test_a_closed_window_drops_held_and_later_text() -> None:
    window = Window(guard(None, 0))
    window.add("held")
    window.close()
    window.add("more")
    assert not window.is_due(final=True)


def test_a_span_without_an_end_is_not_held_for_ever() -> None:
    window = Window(guard(0, 10))
    window.add("x" * 200_000)
    assert window.apply(Mask([TextSpan(0, 200_000)]), final=False) == "[masked]"


def test_a_guard_applies_to_its_places_and_plans() -> None:
    of_all, of_free = guard(None, 0), Guard("a", unused, frozenset({"input"}), plans=frozenset({"free"}))
    assert of_all.applies("text", "default")
    assert not of_all.applies("input", "default")
    assert of_free.applies("input", "free")
    assert not of_free.applies("input", "default")


@pytest.mark.parametrize(
    ("spans", "right"),
    [
        ([], []),
        ([TextSpan(3, 9), TextSpan(0, 2)], [TextSpan(0, 2), TextSpan(3, 5)]),
        ([TextSpan(0, 3, "a"), TextSpan(2, 4, "b")], [TextSpan(0, 4, "a")]),
        ([TextSpan(-3, 1), TextSpan(7, 9), TextSpan(4, 2)], [TextSpan(0, 1)]),
    ],
)
def test_spans_are_put_in_order_and_apart(spans: list[TextSpan], right: list[TextSpan]) -> None:
    assert merged(spans, 5) == right

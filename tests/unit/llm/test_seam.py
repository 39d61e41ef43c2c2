"""The seam removes repeated text from a reply that continues an interrupted text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.llm.conversation.seam import REACH, Seam
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
)

LONG = "".join(f"On day {day} the tide table says that high water is at six. " for day in range(50))
ROW = "| calm | no wind |\n"
ROWS = ROW * 4


def joined(stands: str, pieces: Sequence[str], earlier: str = "") -> str:
    """Returns the text that a reader has at the end, if the reply arrives in these pieces."""
    seam = Seam(stands, earlier)
    first, *rest = pieces
    parts: list[Part] = [BlockOpened(0, "text", text=first), *(BlockText(0, piece) for piece in rest), BlockClosed(0)]
    passed = [part for each in parts for part in seam.feed([each])]
    assert seam.decided
    if passed:
        assert isinstance(passed[0], BlockOpened)
        assert passed[-1] == BlockClosed(0)
    return stands + "".join(part.text for part in passed if isinstance(part, BlockOpened | BlockText))


@pytest.mark.parametrize(
    ("stands", "reply", "whole"),
    [
        # the reply continues exactly at the end
        ("The quick bro", "wn fox", "The quick brown fox"),
        ("The quick brown", " fox", "The quick brown fox"),
        ("Half a sentence", " There.", "Half a sentence There."),
        # the reply repeats the last word, which was complete or interrupted
        ("The quick bro", "brown fox", "The quick brown fox"),
        ("The quick brown", "brown fox", "The quick brown fox"),
        ("The quick brown ", "brown fox", "The quick brown fox"),
        # the reply repeats the last words with other white space
        ("It was the best\nof times, it", "best of times, it was", "It was the best\nof times, it was"),
        ("It was the best of times, it", "\n\nof times, it was", "It was the best of times, it was"),
        ("one\n\ntwo\n", "two\nthree", "one\n\ntwo\nthree"),
        # the reply repeats the last words from the middle of their first word
        ("word w283 w284 w285", "3 w284 w285 w286", "word w283 w284 w285 w286"),
        ("word w283 w284 w285", "85 w286", "word w283 w284 w28585 w286"),
        ("the year 1000000000000000", "00000000000000 more", "the year 100000000000000000000000000000 more"),
        # the reply begins with a longer word that starts like the last word
        ("0.0.0 ", "0.0.1 0.0.2", "0.0.0 0.0.1 0.0.2"),
        ("see 1.1", " 1.1.2 and", "see 1.1 1.1.2 and"),
        ("see 1.1", "1.1.2 and", "see 1.1.2 and"),
        ("as of version 1.1 ", "version 1.1 there", "as of version 1.1 there"),
        # the reply repeats the last sentence
        ("No. It was the wors", "It was the worst of times.", "No. It was the worst of times."),
        # the reply repeats the whole text, and continues
        ("Once upon a ti", "Once upon a time", "Once upon a time"),
        (LONG, LONG + "Ebb is at noon.", LONG + "Ebb is at noon."),
        # A text of equal parts continues with more of these parts: the seam must not remove any.
        (ROWS, ROWS + "| storm | north |", ROWS * 2 + "| storm | north |"),
        (f"Winds:\n{ROWS}| calm", f" | no wind |\n{ROWS}", f"Winds:\n{ROWS}| calm | no wind |\n{ROWS}"),
        (ROWS, "| calm | no wind |", ROWS + "| calm | no wind |"),
        ("1, 0, 0, 0, 0, 0, 0, 0, 0", ", 0, 0, 0, 0, 0, 0, 0, 2", "1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2"),
        # the same, if only the first part of the text is complete, and the reply has all other parts
        (ROW, ROW * 8, ROW * 9),
        (f"{ROW}| calm", f" | no wind |\n{ROW * 7}", ROW * 9),
        # a reply that begins with words that the text already has twice is new text
        (
            "Press the red button. Wait. Press the red button.",
            " Press the red button. Go.",
            "Press the red button. Wait. Press the red button. Press the red button. Go.",
        ),
        # the reply only repeats the whole text
        ("That is all.", "That is all.", "That is all."),
        # the reply begins like the text, but then differs: all of the reply is new text
        ("Once upon a time", "Once upon a hill", "Once upon a timeOnce upon a hill"),
        # the reply begins like the end of the text by chance
        ("a very", " very good", "a very very good"),
        ("Option A", "And so on", "Option AAnd so on"),
        ("1", "1.5", "11.5"),
        ("It costs 120", "120 euros", "It costs 120 euros"),
        # scripts without spaces between words
        ("今天天气", "天气很好", "今天天气很好"),
        ("我说天", "天气", "我说天天气"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_both_texts_read_as_one(stands: str, reply: str, whole: str, size: int) -> None:
    pieces = [reply[place : place + size] for place in range(0, len(reply), size)]
    assert joined(stands, pieces) == whole


@pytest.mark.parametrize(
    ("earlier", "stands", "reply", "whole"),
    [
        # the reply repeats words from both sides of a call
        ("a b", "c ", "a b c d", "c d"),
        ("I look at the map. The tide", "turns", "The tide turns at six.", "turns at six."),
        # a repetition from before the call must begin with a whole word
        ("The tide", "turns", "ide turns at six.", "turnside turns at six."),
        # the reply repeats the whole answer
        (LONG, "Ebb", LONG + "Ebb is at noon.", "Ebb is at noon."),
        # the reply repeats only the text after the call, whatever its length
        ("Let me see.", LONG, LONG + "Ebb is at noon.", LONG + "Ebb is at noon."),
        # the reply repeats words from before the call, but not up to the end of the interrupted text
        ("a b", "c ", "a b d", "c a b d"),
        ("The tide", "turns", "The tide rises.", "turnsThe tide rises."),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_repetition_may_begin_in_the_text_before_a_call(
    earlier: str, stands: str, reply: str, whole: str, size: int
) -> None:
    pieces = [reply[place : place + size] for place in range(0, len(reply), size)]
    assert joined(stands, pieces, earlier) == whole


def test_white_space_alone_is_not_held_back_for_ever() -> None:
    seam = Seam("Half")
    assert seam.feed([BlockOpened(0, "text")]) == []
    passed = [part for _ in range(REACH + 10) for part in seam.feed([BlockText(0, " ")])]
    assert passed[0] == BlockOpened(0, "text", text=" " * (REACH + 9))
    assert passed[1:] == [BlockText(0, " ")]


def test_a_different_text_is_passed_on_at_once_and_the_rest_unchecked() -> None:
    seam = Seam("Half a")
    passed = seam.feed([BlockOpened(0, "text"), BlockText(0, "no"), BlockText(0, "Half a")])
    assert passed == [BlockOpened(0, "text", text="no"), BlockText(0, "Half a")]
    assert seam.decided


def test_parts_before_the_text_pass() -> None:
    seam, usage = Seam("Half a"), MessageDelta(None, {"output_tokens": 2})
    before: list[Part] = [MessageStarted({}), BlockOpened(0, "thinking"), BlockText(0, "a"), BlockClosed(0), usage]
    assert seam.feed(before) == before
    assert not seam.decided
    assert seam.feed([BlockOpened(1, "text"), usage, BlockText(0, "b")]) == [usage, BlockText(0, "b")]


LAST: Sequence[Part] = [MessageDelta("end_turn", {}), MessageEnded(), BlockOpened(2, "tool_use")]


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize(("held", "passed"), [("Ha", "Ha"), ("Half a", "")])
def test_parts_behind_the_text_end_the_wait(last: Part, held: str, passed: str) -> None:
    seam, cited = Seam("Half a"), BlockData(1, "citations", {}, True)
    assert seam.feed([BlockOpened(1, "text"), BlockText(1, held), cited]) == []
    assert seam.feed([last]) == [BlockOpened(1, "text", text=passed), cited, last]
    assert seam.decided


def test_a_text_that_only_repeats_is_no_block() -> None:
    seam = Seam("Half a")
    assert seam.feed([BlockOpened(1, "text"), BlockText(1, "Half a"), BlockClosed(1), MessageEnded()]) == [
        MessageEnded()
    ]


def test_a_reply_without_text_holds_nothing() -> None:
    assert Seam("Half a").feed(LAST) == LAST


TEXTS = st.text(alphabet="ab \n.é天", max_size=30)


@given(TEXTS.filter(str.strip), TEXTS, TEXTS, st.integers(1, 5))
def test_only_the_repetition_is_removed(stands: str, reply: str, earlier: str, size: int) -> None:
    pieces = [reply[place : place + size] for place in range(0, len(reply), size)] or [""]
    whole = joined(stands, pieces, earlier)
    passed = whole.removeprefix(stands)
    assert reply.endswith(passed)
    dropped = "".join(reply.removesuffix(passed).split())
    assert "".join((earlier + stands).split()).endswith(dropped)
    assert whole == joined(stands, [reply or ""], earlier), "however it was cut"

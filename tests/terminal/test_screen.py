from hypothesis import given
from hypothesis import strategies as st

from tests.support.virtual_terminal import VirtualTerminal
from turnstream_terminal.render import ScreenLine
from turnstream_terminal.screen import AppendOnlyScreen, Screen, TerminalSize

SIZE = TerminalSize(12, 6)

words = st.text("abc", min_size=1, max_size=SIZE.width)
frames = st.lists(words, max_size=SIZE.height - 1)


def lines(*texts: str) -> list[ScreenLine]:
    return [ScreenLine(text, len(text)) for text in texts]


@given(st.lists(st.tuples(frames, frames)))
def test_every_final_line_appears_once_above_the_last_frame(
    steps: list[tuple[list[str], list[str]]],
) -> None:
    terminal = VirtualTerminal(*SIZE)
    screen, kept, frame = Screen(terminal), list[str](), list[str]()
    for settled, changing in steps:
        screen.show(lines(*settled, *changing), len(settled), SIZE)
        kept += settled
        frame = changing
    assert terminal.lines == [*kept, *frame]


def test_a_frame_like_the_one_before_writes_nothing() -> None:
    terminal = VirtualTerminal(*SIZE)
    screen = Screen(terminal)
    screen.show(lines("one", "two"), 0, SIZE)
    terminal.write = lambda text: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    screen.show(lines("one", "two"), 0, SIZE)
    screen.show(lines("one", "two"), 1, SIZE)


def test_a_line_that_stays_the_same_between_others_is_not_written_again() -> None:
    written: list[str] = []

    class Spy(VirtualTerminal):
        def write(self, text: str) -> int:
            written.append(text)
            return super().write(text)

    screen = Screen(Spy(*SIZE))
    screen.show(lines("first", "same", "last"), 0, SIZE)
    screen.show(lines("changed", "same", "done"), 0, SIZE)
    assert "same" not in written[-1]


def test_in_a_narrower_window_the_lines_that_the_terminal_has_wrapped_are_replaced() -> None:
    terminal = VirtualTerminal(12, 6)
    screen = Screen(terminal)
    screen.show(lines("kept", "x" * 10, "y" * 10), 1, TerminalSize(12, 6))
    terminal.narrow(6)
    screen.show(lines("x" * 6, "y" * 6), 0, TerminalSize(6, 6))
    assert terminal.lines == ["kept", "x" * 6, "y" * 6]


def test_an_append_only_screen_shows_final_lines_only() -> None:
    terminal = VirtualTerminal(*SIZE)
    screen = AppendOnlyScreen(terminal)
    screen.show(lines("one", "may change"), 1, SIZE)
    screen.show(lines("two"), 1, SIZE)
    assert terminal.lines == ["one", "two"]
    assert screen.room(SIZE) == 0

"""Lines on a terminal: the last lines may still change, and the lines above them are final."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple, Protocol

from turnstream_terminal.render import ScreenLine
from turnstream_terminal.text import common_length


class TerminalSize(NamedTuple):
    width: int
    height: int


class TextOutput(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Display(Protocol):
    def show(self, lines: Sequence[ScreenLine], final: int, size: TerminalSize) -> None:
        """Replaces the changeable lines with `lines`, of which the first `final` lines become final."""

    def room(self, size: TerminalSize) -> int:
        """Returns the maximum number of changeable lines."""


class AppendOnlyScreen:
    """A terminal without cursor movement: it shows only final lines."""

    def __init__(self, file: TextOutput) -> None:
        self._file = file

    def room(self, size: TerminalSize) -> int:  # noqa: ARG002, of the protocol
        return 0

    def show(self, lines: Sequence[ScreenLine], final: int, size: TerminalSize) -> None:  # noqa: ARG002
        self._file.write("".join(f"{line.text}\n" for line in lines[:final]))
        self._file.flush()


class Screen:
    """Writes only changed lines: nothing flickers, and each line enters the scrollback once."""

    def __init__(self, file: TextOutput) -> None:
        self._file = file
        self._lines: list[ScreenLine] = []
        self._width = 0

    def room(self, size: TerminalSize) -> int:
        return size.height - 1  # the cursor is in the row below the lines

    def show(self, lines: Sequence[ScreenLine], final: int, size: TerminalSize) -> None:
        if self._lines and size.width != self._width:
            # The terminal has wrapped the old lines to another number of rows, so all lines are written again.
            rows = sum(max(1, ceil(line.width / size.width)) for line in self._lines)
            text = "".join(f"{line.text}\r\n" for line in lines)
            written = f"{_up(min(rows, size.height - 1))}\r\x1b[J{text}"
        else:
            written = "".join(self._changed(lines))
        self._lines, self._width = list(lines[final:]), size.width
        if written:
            self._file.write(written)
            self._file.flush()

    def _changed(self, lines: Sequence[ScreenLine]) -> Iterator[str]:
        old = self._lines
        first_change = common_length(old, lines)
        if first_change == len(old) == len(lines):
            return
        yield _up(len(old) - first_change)
        for row in range(first_change, len(lines)):
            unchanged = row < len(old) and old[row] == lines[row]
            # Clears the line before it is written: after a full line, the cursor is still in the last cell of that
            # line.
            yield "\x1b[B" if unchanged else f"\x1b[2K{lines[row].text}\r\n"
        if len(lines) < len(old):
            yield "\x1b[J"


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""

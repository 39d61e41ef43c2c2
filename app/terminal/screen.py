"""The lower end of a terminal: lines that may still change, below lines that never will again."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple, Protocol

from app.terminal.render import Line


class TerminalSize(NamedTuple):
    width: int
    height: int


class Output(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Surface(Protocol):
    def show(self, lines: Sequence[Line], keep: int, size: TerminalSize) -> None:
        """`lines` take the place of those that may still change; the first `keep` of them stay for good."""

    def room(self, size: TerminalSize) -> int:
        """How many lines may be left changing."""


class Paper:
    """A terminal that can only go on: what may change is not shown yet."""

    def __init__(self, file: Output) -> None:
        self._file = file

    def room(self, size: TerminalSize) -> int:  # noqa: ARG002, paper has no size
        return 0

    def show(self, lines: Sequence[Line], keep: int, size: TerminalSize) -> None:  # noqa: ARG002
        self._file.write("".join(f"{line.text}\n" for line in lines[:keep]))
        self._file.flush()


class Screen:
    """Writes only the lines that have changed: nothing flickers, and nothing gets into the scrollback twice."""

    def __init__(self, file: Output) -> None:
        self._file = file
        self._lines: list[Line] = []
        self._width = 0

    def room(self, size: TerminalSize) -> int:
        return size.height - 1  # the cursor waits below

    def show(self, lines: Sequence[Line], keep: int, size: TerminalSize) -> None:
        if self._lines and size.width != self._width:
            written = "".join(self._anew(lines, size))
        else:
            written = "".join(self._changed(lines))
        self._lines, self._width = list(lines[keep:]), size.width
        if written:
            self._file.write(written)
            self._file.flush()

    def _changed(self, lines: Sequence[Line]) -> Iterator[str]:
        old = self._lines
        same = next((n for n, (a, b) in enumerate(zip(old, lines, strict=False)) if a != b), min(len(old), len(lines)))
        if same == len(old) == len(lines):
            return
        yield _up(len(old) - same)
        for place in range(same, len(lines)):
            unchanged = place < len(old) and old[place] == lines[place]
            # The line is emptied first: behind a full one the cursor still stands on its last cell.
            yield "\x1b[B" if unchanged else f"\x1b[2K{lines[place].text}\r\n"
        if len(lines) < len(old):
            yield "\x1b[J"

    def _anew(self, lines: Sequence[Line], size: TerminalSize) -> Iterator[str]:
        """The window has another width: the terminal has wrapped the old lines, which now take more rows."""
        rows = sum(max(1, ceil(line.width / size.width)) for line in self._lines)
        yield _up(min(rows, size.height - 1)) + "\r\x1b[J"
        for line in lines:
            yield f"{line.text}\r\n"


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""

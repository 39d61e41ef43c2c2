"""Renders the parts of a turn as lines of a terminal."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.console import Console, RenderableType
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.text import Text
from rich.theme import Theme

from turnstream_terminal.text import has_huge_table
from turnstream_terminal.turn_parts import LineStatus, Prose, SummaryLine, TurnPart, UserText

THEME: Final = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
    }
)
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER: Final = "|/-\\"
_SIGNS: Final[Mapping[LineStatus, tuple[str, str, str]]] = {  # sign (empty for the spinner), sign in ASCII, style
    "thinking": ("∴", "*", "dim"),
    "thought": ("∴", "*", "dim"),
    "writing": ("", "", "dim"),
    "running": ("", "", ""),
    "waiting": ("?", "?", "yellow"),
    "ok": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "stopped": ("■", "-", "yellow"),
    "other": ("·", "-", "dim"),
}
_THOUGHTS: Final = frozenset({"thinking", "thought"})
_SET_APART: Final = frozenset({Prose, UserText})


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """One line with its escape sequences. `width` is in cells."""

    text: str
    width: int


EMPTY_LINE: Final = ScreenLine("", 0)


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


class Renderer:
    """Renders parts and status lines. The parameter `frame` is the number of the frame, and selects the character of
    spinners.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        ascii_only = not console.encoding.lower().startswith("utf")
        self._sign_of = {status: plain if ascii_only else sign for status, (sign, plain, _) in _SIGNS.items()}
        self._spinner = _ASCII_SPINNER if ascii_only else _SPINNER
        self._cache: dict[tuple[str, int], list[ScreenLine]] = {}

    def parts(
        self, parts: Iterable[TurnPart], frame: int = 0, *, before: TurnPart | None = None, tallest: int | None = None
    ) -> list[list[ScreenLine]]:
        """Returns the lines of each part. An empty line precedes the first part, all prose and all messages of the
        user, and follows prose and these messages. Only the last `tallest` lines of an unfinished code block are
        rendered.
        """
        rendered: list[list[ScreenLine]] = []
        cache: dict[tuple[str, int], list[ScreenLine]] = {}  # keeps only the entries of this frame
        for part in parts:
            if isinstance(part.content, SummaryLine):
                lines = self.summary_line(part.content, frame)
            elif isinstance(part.content, UserText):
                lines = self._lines(Text("> " + part.content.text.strip().replace("\n", "\n  "), "bold"))
            else:
                key = (_visible_markdown(part, part.content, tallest), self._console.width)
                lines = cache[key] = self._cache.get(key) or self._prose(key[0])
            apart = before is None or not _SET_APART.isdisjoint({type(before.content), type(part.content)})
            rendered.append([EMPTY_LINE, *lines] if apart else lines)
            before = part
        self._cache = cache
        return rendered

    def summary_line(self, line: SummaryLine, frame: int = 0) -> list[ScreenLine]:
        style = _SIGNS[line.status][2]
        text = Text(self._sign_of[line.status] or self._spin(frame), style, overflow="ellipsis")
        text.append(f" {line.name}", "dim" if style == "dim" else "not dim")
        if line.details or line.note:
            # The note gets as much room as it needs; the details are truncated to the rest of the line.
            room = self._console.width - text.cell_len
            note = Text(f" · {line.note}" if line.note else "", "red" if line.status == "failed" else "dim")
            note.truncate(max(room, 0), overflow="ellipsis")
            separator = " · " if line.status in _THOUGHTS else " "
            details = Text(f"{separator}{line.details}" if line.details else "", "dim")
            details.truncate(max(room - note.cell_len, 0), overflow="ellipsis")
            text.append_text(details).append_text(note)
        return self._lines(text)

    def status_line(self, text: str, frame: int) -> list[ScreenLine]:
        return self._lines(Text(f"{self._spin(frame)} {text}", style="dim", no_wrap=True, overflow="ellipsis"))

    def _spin(self, frame: int) -> str:
        return self._spinner[frame % len(self._spinner)]

    def _prose(self, markdown: str) -> list[ScreenLine]:
        """Renders Markdown without the empty lines that rich adds at the beginning and at the end."""
        if has_huge_table(markdown):
            return self._lines(Text(markdown))
        lines = self._lines(_Markdown(markdown, code_theme="ansi_dark", hyperlinks=False))
        full = [index for index, line in enumerate(lines) if line.width]
        return lines[full[0] : full[-1] + 1] if full else []

    def _lines(self, renderable: RenderableType) -> list[ScreenLine]:
        console, lines = self._console, []
        for row in console.render_lines(renderable, console.options.update(height=None), pad=False):
            segments = _trimmed(row)
            with console.capture() as captured:
                console.print(Segments(segments), end="")
            lines.append(ScreenLine(captured.get(), Segment.get_line_length(segments)))
        return lines


def _visible_markdown(part: TurnPart, prose: Prose, tallest: int | None) -> str:
    """Truncates an unfinished code block to its last `tallest` lines, because more lines do not fit on the screen."""
    text = prose.markdown
    if part.settled or tallest is None or not text.lstrip().startswith(("```", "~~~")):
        return text
    fence, *lines = text.lstrip().split("\n")
    return "\n".join([fence, *lines[-tallest:]])


def _trimmed(row: list[Segment]) -> list[Segment]:
    """Removes trailing spaces from a row, because they would wrap in a narrower window."""
    while row and not row[-1].text.strip(" ") and not (row[-1].style and row[-1].style.bgcolor):
        row = row[:-1]
    if row and not (row[-1].style and row[-1].style.bgcolor):
        text, style, _ = row[-1]
        row = [*row[:-1], Segment(text.rstrip(" "), style)]
    return row

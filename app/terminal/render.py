"""Parts of a turn as lines of a terminal."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.console import Console, RenderableType
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.text import Text
from rich.theme import Theme

from app.terminal.turn_parts import Fold, Look, Part, Prose, Said

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
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES: Final = "|/-\\"
_MARKS: Final[Mapping[Look, tuple[str, str, str]]] = {  # sign, sign where there is only ASCII, style
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
_APART: Final = frozenset({Prose, Said})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen: what to write, and how many cells wide that is."""

    text: str
    width: int


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _Prose(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


class Renderer:
    """`spin` is the phase of everything that turns while something runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii = not console.encoding.lower().startswith("utf")
        self._known: dict[tuple[str, int], list[Line]] = {}

    def lines(
        self, parts: Iterable[Part], spin: int = 0, *, before: Part | None = None, tallest: int | None = None
    ) -> list[list[Line]]:
        """The lines of each part. An empty one goes before words, before what follows words, and before the very first.
        Of code that is still growing only the last `tallest` lines are rendered.
        """
        rendered: list[list[Line]] = []
        known: dict[tuple[str, int], list[Line]] = {}
        for part in parts:
            if isinstance(part.content, Fold):
                lines = self.fold(part.content, spin)
            elif isinstance(part.content, Said):
                lines = self.of(Text("> " + part.content.text.strip().replace("\n", "\n  "), "bold"))
            else:
                key = (_end_of(part, tallest), self._console.width)
                lines = known[key] = self._known.get(key) or _without_margin(self.of(_prose(key[0])))
            apart = before is None or not _APART.isdisjoint({type(before.content), type(part.content)})
            rendered.append([Line("", 0), *lines] if apart else lines)
            before = part
        self._known = known
        return rendered

    def fold(self, fold: Fold, spin: int = 0) -> list[Line]:
        sign, plain, style = _MARKS[fold.look]
        frames = _PLAIN_FRAMES if self._ascii else _FRAMES
        mark = (plain if self._ascii else sign) or frames[spin % len(frames)]
        text = Text(mark, style, overflow="ellipsis")
        return self.of(self._fitted(text, fold, "dim" if style == "dim" else "not dim"))

    def status(self, words: str, spin: int) -> list[Line]:
        frames = _PLAIN_FRAMES if self._ascii else _FRAMES
        text = Text(f"{frames[spin % len(frames)]} {words}", style="dim", no_wrap=True, overflow="ellipsis")
        return self.of(text)

    def of(self, renderable: RenderableType) -> list[Line]:
        console = self._console
        rows = console.render_lines(renderable, console.options.update(height=None), pad=False)
        return [self._line(_trimmed(row)) for row in rows]

    def _line(self, row: list[Segment]) -> Line:
        with self._console.capture() as captured:
            self._console.print(Segments(row), end="")
        return Line(captured.get(), Segment.get_line_length(row))

    def _fitted(self, text: Text, fold: Fold, style: str) -> Text:
        """The note stays whole; the particulars are cut to what is left of the line."""
        text.append(f" {fold.name}", style)
        if not (fold.details or fold.note):
            return text
        room = self._console.width - text.cell_len
        note = Text(f" · {fold.note}" if fold.note else "", "red" if fold.look == "failed" else "dim")
        note.truncate(max(room, 0), overflow="ellipsis")
        details = Text(f"{' · ' if fold.look in _THOUGHTS else ' '}{fold.details}" if fold.details else "", "dim")
        details.truncate(max(room - note.cell_len, 0), overflow="ellipsis")
        return text.append_text(details).append_text(note)


def _prose(markdown: str) -> Markdown:
    return _Prose(markdown, code_theme="ansi_dark", hyperlinks=False)


def _end_of(part: Part, tallest: int | None) -> str:
    """The markdown of the part; of a code block that grows only the end, which is all that will be seen of it."""
    assert isinstance(part.content, Prose)
    text = part.content.markdown
    if part.settled or tallest is None or not text.lstrip().startswith(("```", "~~~")):
        return text
    fence, *lines = text.lstrip().split("\n")
    return "\n".join([fence, *lines[-tallest:]])


def _without_margin(lines: list[Line]) -> list[Line]:
    full = [place for place, line in enumerate(lines) if line.width]
    return lines[full[0] : full[-1] + 1] if full else []


def _trimmed(row: list[Segment]) -> list[Segment]:
    """Without spaces at the end, which would wrap when the window gets narrower."""
    while row and not row[-1].text.strip(" ") and not (row[-1].style and row[-1].style.bgcolor):
        row = row[:-1]
    if row and not (row[-1].style and row[-1].style.bgcolor):
        text, style, _ = row[-1]
        row = [*row[:-1], Segment(text.rstrip(" "), style)]
    return row

"""Makes excerpts around found words. An excerpt consists of pieces, which are plain text or a found word."""

import re
from collections.abc import Sequence

from turnstream.libraries.searches.search import ExcerptPiece
from turnstream.storage.database import Row

# Margins around a found word, in characters.
BEFORE = 40
AFTER = 140
_LONGEST_HALF = 20  # characters; a longer word at the edge of a window is not dropped

# Matches Markdown at the start of a line (headings, quotes, lists and fences), and lines that contain only Markdown.
_SIGNS_OF_LINES = re.compile(
    r"^[ \t]*(?:"
    r"(?:#{1,6}|>|[-*+]|\d{1,3}[.)])[ \t]+|(?:```|~~~).*$|\|?(?:[ \t]*:?-{2,}:?[ \t]*(?:\||$))+|[*_]{3,}[ \t]*$)",
    re.MULTILINE,
)
# A link; its text is kept.
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^()\s]*\)")
# Marks of emphasis and code at the start or end of a word. `2**3` and `snake_case` contain no such marks.
_SIGNS = re.compile(r"(?<![\w*_~])(?:[*_]{1,3}|~~)(?=\S)|(?<=\S)(?:[*_]{1,3}|~~)(?![\w*_~])|`+")
_CELL = re.compile(r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", re.MULTILINE)


def pieces_of(text: str, words: Sequence[str]) -> tuple[ExcerptPiece, ...]:
    """Splits `text` at each of `words`, ignoring case and word boundaries."""
    longest_first = sorted(words, key=len, reverse=True)
    halves = re.split(f"({'|'.join(map(re.escape, longest_first))})", text, flags=re.IGNORECASE)
    return tuple(ExcerptPiece(half, place % 2 == 1) for place, half in enumerate(halves) if half)


def without_markdown(text: str, words: Sequence[str]) -> str:
    """Returns the text without Markdown. Returns the text unchanged if one of `words` would be removed."""
    plain = _CELL.sub("", _SIGNS.sub("", _LINK.sub(r"\1", _SIGNS_OF_LINES.sub("", text))))
    return plain if all(word.lower() in plain.lower() for word in words if word.lower() in text.lower()) else text


def line_of(window: str, *, cut_before: bool, cut_after: bool) -> str:
    """Returns a window of a text as one line, with `…` where the text was cut."""
    line = " ".join(window.split())
    if cut_before:
        half, _, rest = line.partition(" ")
        line = f"… {rest}" if _is_half(half, window[0]) else f"… {line}"
    if cut_after:
        rest, _, half = line.rpartition(" ")
        line = f"{rest} …" if _is_half(half, window[-1]) else f"{line} …"
    return line


def excerpt_line(window: Row, words: Sequence[str]) -> str:
    """Returns the window of a text around one of the words, as one line."""
    plain = without_markdown(window["around"], words)
    return line_of(plain, cut_before=window["cut_before"], cut_after=window["cut_after"])


def _is_half(word: str, edge: str) -> bool:
    """Returns whether the word at the edge of a window is probably cut, and can be dropped."""
    return not edge.isspace() and len(word) <= _LONGEST_HALF

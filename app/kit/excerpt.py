"""What is shown of a text in which words were found: pieces of it, of which some are those words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

# Around what was found, in characters.
BEFORE = 40
AFTER = 140
_LONGEST_HALF = 20  # of a word that was cut through at the edge


@dataclass(frozen=True, slots=True)
class ExcerptPiece:
    text: str
    found: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Of what was said in `turn`; the whole title of the chat where that is None."""

    turn: UUID | None
    pieces: tuple[ExcerptPiece, ...]


def pieces_of(text: str, words: Sequence[str]) -> tuple[ExcerptPiece, ...]:
    """All of `text`; each of `words` is found wherever it stands, whatever its capitals."""
    longest_first = sorted(words, key=len, reverse=True)
    halves = re.split(f"({'|'.join(map(re.escape, longest_first))})", text, flags=re.IGNORECASE)
    return tuple(ExcerptPiece(half, place % 2 == 1) for place, half in enumerate(halves) if half)


def line_of(window: str, *, cut_before: bool, cut_after: bool) -> str:
    """A piece of a text as one line, which says where it was cut."""
    line = " ".join(window.split())
    if cut_before:
        half, _, rest = line.partition(" ")
        line = f"… {rest}" if _is_half(half, window[0]) else f"… {line}"
    if cut_after:
        rest, _, half = line.rpartition(" ")
        line = f"{rest} …" if _is_half(half, window[-1]) else f"{line} …"
    return line


def _is_half(word: str, edge: str) -> bool:
    """Whether the word at the edge of a window was probably cut through, and can be left out."""
    return not edge.isspace() and len(word) <= _LONGEST_HALF

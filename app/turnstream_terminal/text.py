"""Safe and short text for a terminal, and JSON in an unambiguous form."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import eq
from typing import Any, Final

# Control characters, which a terminal would execute. Tab (9) and line feed (10) are kept.
_CONTROLS: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")
_LONGEST_VALUE: Final = 60
LONGEST_LINE: Final = 400
_MAX_CELLS: Final = 5_000
# Matches the second row of a table, and the rows below it.
_TABLE: Final = re.compile(r"^[ \t>]*([|:-][|: \t-]*)$((?:\n(?![ \t]*$).*)*)", re.MULTILINE)


def printable(text: str) -> str:
    """Replaces control characters, so that a model cannot move the cursor or set the window's title."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def has_huge_table(markdown: str) -> bool:
    """Returns whether the tables would have more cells than a terminal can render in a second. Each row is filled up to
    the number of columns in the head, so a few characters may produce many cells.
    """
    cells: Iterator[int] = (
        (row.count("|") + 1) * (rows.count("\n") + 1) for row, rows in _TABLE.findall(markdown) if "|" in row
    )
    return sum(cells) > _MAX_CELLS


def one_line(text: str) -> str:
    return printable(" ".join(text[:LONGEST_LINE].split()))


def last_words(text: str) -> str:
    """Returns the last words of a line that is still growing."""
    return text if len(text) <= _LONGEST_VALUE else f"… {text[-_LONGEST_VALUE:].partition(' ')[2]}"


def sentence(text: str) -> str:
    text = printable(text).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns the length of the common prefix."""
    return sum(takewhile(bool, map(eq, one, other)))


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


# --- JSON ------------------------------------------------------------------------------------------------------------


def json_line(value: Any) -> str:
    return _escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def indented_json(value: Any) -> str:
    return _escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def _escaped(text: str) -> str:
    """Writes invisible characters as JSON escapes. A person approves calls by this text: characters that reverse or
    hide others must not disguise an argument.
    """
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def same_json(one: Any, other: Any) -> bool:
    """Compares JSON values: 1, 1.0 and true are different, unlike in Python."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def short_input(value: Any) -> str:
    """Abbreviates the input of a call: query="solar panels", limit=3."""
    if not isinstance(value, dict):
        return _short_value(value) if value else ""
    return ", ".join(f"{one_line(name)}={_short_value(each)}" for name, each in value.items())


def _short_value(value: Any) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False))
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 2] + ('…"' if isinstance(value, str) else "…")

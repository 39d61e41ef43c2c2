"""JSON as it is: nothing in it can look like something else, and a terminal obeys none of it."""

import json
from typing import Any, Final

# What a terminal would obey instead of showing it.
_CONTROLS: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")
_LONGEST_VALUE: Final = 60
LONGEST_LINE: Final = 400


def compact(value: Any) -> str:
    return _visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def pretty(value: Any) -> str:
    return _visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def same(one: Any, other: Any) -> bool:
    """As JSON, where 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _visible(text: str) -> str:
    """What is not printed, or turns the line around, is escaped as JSON has it."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def clean(text: str) -> str:
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def span(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def one_line(text: str) -> str:
    return clean(" ".join(text[:LONGEST_LINE].split()))


def sentence(words: str) -> str:
    words = clean(words).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def short_input(value: Any) -> str:
    """The input of a call as a person would note it down: query="solar panels", limit=3."""
    if not isinstance(value, dict):
        return _short(value) if value else ""
    return ", ".join(f"{one_line(name)}={_short(one)}" for name, one in value.items())


def tail(words: str) -> str:
    if len(words) <= _LONGEST_VALUE:
        return words
    return f"… {words[-_LONGEST_VALUE:].partition(' ')[2]}"


def _short(value: Any) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False))
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 2] + ('…"' if isinstance(value, str) else "…")

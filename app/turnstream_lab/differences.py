"""Describes to people the first difference between two requests, or between two other JSON values."""

from collections.abc import Mapping, Sequence
from itertools import takewhile, zip_longest
from operator import eq
from typing import Any

import msgspec

Path = tuple[str | int, ...]

_SHOWN = 60  # characters
_MISSING = object()
_SINGULARS = {"messages": "message", "content": "block", "tools": "tool", "tool_calls": "call", "blocks": "block"}


def request_difference(then: bytes, now: bytes) -> str | None:
    """Describes the first difference between two bodies. Returns None if their bytes are equal."""
    if then == now:
        return None
    place = _common_length(then, now)
    try:
        words = difference(msgspec.json.decode(then), msgspec.json.decode(now))
    except ValueError:
        return f"byte {place:,}: it was {then[place:][:20]!r}, now {now[place:][:20]!r}"
    return words or f"byte {place:,}: it is the same, but written in another way"


def _common_length(one: Sequence[object], other: Sequence[object]) -> int:
    return sum(takewhile(bool, map(eq, one, other)))


def difference(then: Any, now: Any, path: Path = ()) -> str | None:
    """Describes the first difference between two JSON values. Returns None if they are equal."""
    match then, now:
        case Mapping(), Mapping():
            for name in dict.fromkeys((*then, *now)):
                if found := difference(then.get(name, _MISSING), now.get(name, _MISSING), (*path, name)):
                    return found
            return None
        case list(), list():
            for place, (before, after) in enumerate(zip_longest(then, now, fillvalue=_MISSING)):
                if found := difference(before, after, (*path, place)):
                    return found
            return None
        case str(), str() if then != now:
            place = _common_length(then, now)
            start = max(0, place - 10)
            was, became = _brief(then[start:]), _brief(now[start:])
            return f"{_named(path)}: from character {place:,} on it was {was}, now {became}"
        case _ if then is _MISSING:
            return f"{_named(path)} was not there, now it is {_brief(now)}"
        case _ if now is _MISSING:
            return f"{_named(path)} was {_brief(then)}, now it is not there"
        case _ if then != now or type(then) is not type(now):
            return f"{_named(path)} was {_brief(then)}, now it is {_brief(now)}"
        case _:
            return None


def _named(path: Path) -> str:
    """Converts a path to words: `messages`, 2, `content`, 0, `text` becomes "message 3, block 1, text"."""
    words: list[str] = []
    for name, step in zip((None, *path), path, strict=False):
        if isinstance(step, int):
            words[-1:] = [f"{_SINGULARS.get(str(name), str(name))} {step + 1}"]
        else:
            words.append(step)
    return ", ".join(words) or "it"


def _brief(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

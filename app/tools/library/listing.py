"""How documents are shown to a model: as a tree, as numbered lines, as guesses at what it meant."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Protocol

_MOST_ROWS = 400
_LONGEST_LINE = 2_000
_LONGEST_EXCERPT = 50_000
_GUESSES = 5
_MOST_COMPARED = 2_000


class Entry(Protocol):
    """A document; `size` counts characters."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


def listing(documents: Sequence[Entry], folder: str = "") -> str:
    """The documents, all of them below `folder`, as an indented tree; one level of it when they are many."""
    size = sum(document.size for document in documents)
    rows = list(_tree(documents) if len(documents) <= _MOST_ROWS else _level(documents, folder))
    head = f"{_count(len(documents), 'document')}, {_count(size, 'character')}{folder and f', in {folder}/'}"
    if len(documents) > _MOST_ROWS:
        head += "; name a folder to see inside"
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [f"… and {len(rows) - _MOST_ROWS:,} more; doc_search finds them"]
    return "\n".join([f"{head}:", *rows])


def _tree(documents: Sequence[Entry]) -> Iterator[str]:
    shown: list[str] = []
    for document in sorted(documents, key=lambda document: document.path.split("/")):
        *folders, name = document.path.split("/")
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, folders, strict=False)))
        for depth in range(known, len(folders)):
            yield f"{'  ' * depth}{folders[depth]}/"
        yield f"{'  ' * len(folders)}{name}  {document.size:,}"
        shown = folders


def _level(documents: Sequence[Entry], folder: str) -> Iterator[str]:
    """The folders right below `folder` with what they hold, then the documents beside them."""
    prefix = f"{folder}/" if folder else ""
    inside: dict[str, int] = {}
    beside: list[str] = []
    for document in documents:
        name, slash, _ = document.path.removeprefix(prefix).partition("/")
        if slash:
            inside[name] = inside.get(name, 0) + 1
        else:
            beside.append(f"{prefix}{name}  {document.size:,}")
    yield from (f"{prefix}{name}/  {_count(count, 'document')}" for name, count in sorted(inside.items()))
    yield from sorted(beside)


def excerpt(path: str, content: str, offset: int, limit: int) -> str:
    """Up to `limit` numbered lines from line `offset` on, and how to see more. Overlong lines are folded."""
    lines = _folded(content)
    if not lines:
        return f"{path} is empty."
    if offset > len(lines):
        return f"{path} has only {_count(len(lines), 'line')}; there is no line {offset}."
    end = _end(lines, offset - 1, limit)
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(lines[offset - 1 : end], start=offset)]
    more = f"[{_count(len(lines) - end, 'more line')}: call doc_view with offset {end + 1}]"
    head = f"{path}, lines {offset}-{end} of {len(lines)}:"
    return "\n".join([head, *numbered, *([more] if end < len(lines) else [])])


def _folded(content: str) -> list[str]:
    return [
        line[start : start + _LONGEST_LINE]
        for line in content.splitlines()
        for start in range(0, len(line) or 1, _LONGEST_LINE)
    ]


def _end(lines: Sequence[str], start: int, limit: int) -> int:
    end, room = start, _LONGEST_EXCERPT
    while end < min(start + limit, len(lines)) and room > 0:
        room -= len(lines[end])
        end += 1
    return end


def near(path: str, paths: Sequence[str]) -> list[str]:
    """The paths that were probably meant: those that contain it or have its name, or are spelled alike."""
    wanted = path.lower()
    name = wanted.rpartition("/")[2]
    found = [known for known in paths if wanted in known.lower() or known.lower().rpartition("/")[2] == name]
    spelled = {known.lower(): known for known in paths[:_MOST_COMPARED]}
    spelled |= {known.lower().rpartition("/")[2]: known for known in paths[:_MOST_COMPARED]}
    if not found:
        alike = [*get_close_matches(wanted, spelled, _GUESSES), *get_close_matches(name, spelled, _GUESSES)]
        found = [spelled[key] for key in alike]
    return list(dict.fromkeys(found))[:_GUESSES]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

"""Documents as a model reads them: a tree of folders, numbered lines, suggestions for a path that does not exist."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Protocol

_MAX_ROWS = 400
_MAX_LINE_CHARS = 2_000
_MAX_EXCERPT_CHARS = 50_000
_MAX_SUGGESTIONS = 5
_MAX_COMPARED = 2_000


class Entry(Protocol):
    """A document; `size` counts characters."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


def listing(documents: Sequence[Entry], folder: str = "") -> str:
    """The documents as an indented tree; one level of it if they are many. All of them must be below `folder`."""
    size = sum(document.size for document in documents)
    rows = list(_tree(documents) if len(documents) <= _MAX_ROWS else _level(documents, folder))
    head = f"{_count(len(documents), 'document')}, {_count(size, 'character')}{folder and f', in {folder}/'}"
    if len(documents) > _MAX_ROWS:
        head += "; name a folder to see inside"
    if len(rows) > _MAX_ROWS:
        rows[_MAX_ROWS:] = [f"… and {len(rows) - _MAX_ROWS:,} more; doc_search finds them"]
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
    """The folders in `folder` with the numbers of their documents, then the documents in `folder`."""
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
    """Up to `limit` numbered lines from line `offset` on, and a hint how to read on. Overlong lines are folded."""
    lines = [
        line[start : start + _MAX_LINE_CHARS]
        for line in content.splitlines()
        for start in range(0, len(line) or 1, _MAX_LINE_CHARS)
    ]
    if not lines:
        return f"{path} is empty."
    if offset > len(lines):
        return f"{path} has only {_count(len(lines), 'line')}; there is no line {offset}."
    end, room = offset - 1, _MAX_EXCERPT_CHARS
    while end < min(offset - 1 + limit, len(lines)) and room > 0:
        room -= len(lines[end])
        end += 1
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(lines[offset - 1 : end], start=offset)]
    more = f"[{_count(len(lines) - end, 'more line')}: call doc_view with offset {end + 1}]"
    head = f"{path}, lines {offset}-{end} of {len(lines)}:"
    return "\n".join([head, *numbered, *([more] if end < len(lines) else [])])


def suggest_paths(path: str, paths: Sequence[str]) -> list[str]:
    """Suggestions for a path that does not exist: paths that contain it or have its name, else those spelled alike."""
    path = path.lower()
    name = path.rpartition("/")[2]
    found = [known for known in paths if path in known.lower() or known.lower().rpartition("/")[2] == name]
    spelled = {known.lower(): known for known in paths[:_MAX_COMPARED]}
    spelled |= {known.lower().rpartition("/")[2]: known for known in paths[:_MAX_COMPARED]}
    if not found:
        found = [spelled[key] for part in (path, name) for key in get_close_matches(part, spelled, _MAX_SUGGESTIONS)]
    return list(dict.fromkeys(found))[:_MAX_SUGGESTIONS]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

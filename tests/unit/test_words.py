"""Checks the words of the code: the glossary is complete and true, type names are unique, and prose is plain technical
English.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pages import PAGES
from turnstream.api.events import EVENTS
from turnstream.extensions.admin.schemas import OVERVIEW_EVENTS
from turnstream.extensions.chat_stream.events import CHAT_EVENTS
from turnstream.extensions.feed.events import FEED_EVENTS
from turnstream.storage.all_tables import ALL_TABLES

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
ALL_EVENTS = {*EVENTS, *CHAT_EVENTS, *FEED_EVENTS, *OVERVIEW_EVENTS}

# Everyday words that must not replace the field's words: decode, append, notify, return, name, must.
_EVERYDAY = re.compile(
    r"\b(hears?|heard|told|said|saying|whoever|shall|rung|somebody|by the way)\b",
    re.IGNORECASE,
)

# A sentence has a noun as its subject, and a condition begins with "if" or "when".
_GRAMMAR = re.compile(
    r"\bNone where\b|\b(?:goes|go|going|went|gone) on\b|\banew\b|\bstands\b"
    r"|(?:^|[.] )(?:What|Where|Those|Whose|One that)\b"
)

# The same rules for pages. A question may begin with "What", and a condition begins with "if".
_PAGES = re.compile(
    rf"{_EVERYDAY.pattern}|\b(?:goes|go|going|went|gone) on\b|\banew\b|\bstands?\b(?! in for\b|-ins?\b)"
    r"|\bwhere (?:it|that|one)\b"
    r"|(?-i:(?:^|[.] )(?:[-*] |\d+[.] )?(?:What|Where|Those|Whose|Whoever|One that|That of)\b)(?![^.|]*\?)",
    re.IGNORECASE,
)


class _Module(NamedTuple):
    """The parts of a module that the tests read. The syntax tree of the module is a hundred times larger."""

    header: str
    is_empty: bool
    classes: list[str]  # only public classes
    names: set[str]
    prose: list[tuple[int, str]]  # docstrings and comments, each with its line


@cache
def _modules() -> dict[Path, _Module]:
    return {path: _read(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "app").rglob("*.py"))}


def _read(text: str) -> _Module:
    """Reads a module in one pass over its tree. Names in backticks are code, not prose."""
    tree = ast.parse(text)
    names = set()
    prose = list(_comments(text))
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
                prose.append((node.lineno, _docstring(node)))
            case ast.arg(arg=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    header = _docstring(tree)
    prose.append((1, header))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return _Module(header, not tree.body, classes, names, [(line, found) for line, found in prose if found])


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return _plain(ast.get_docstring(node, clean=False) or "")


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yields the comments with their lines. A text without a `#` has no comments; otherwise the tokenizer decides."""
    if "#" not in text:
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _plain(token.string.lstrip("#"))


def _plain(prose: str) -> str:
    return " ".join(re.sub(r"`[^`]*`", "", prose).split())


def _public_classes() -> Iterator[tuple[str, Path]]:
    for path, module in _modules().items():
        for name in module.classes:
            yield name, path


def _entries() -> set[str]:
    rows = re.findall(r"^(?:\| .+ \| (?=.+ \|$)|\d+\. )(.+)$", GLOSSARY, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _names_of_the_code() -> set[str]:
    return (ALL_EVENTS | set(ALL_TABLES)).union(*(module.names for module in _modules().values()))


def test_the_glossary_has_every_class_of_the_domain() -> None:
    """test_docs.py checks that the map of the tables names every table, and that the protocol names every event."""
    domain = {name for name, path in _public_classes() if path.parent == ROOT / "app/turnstream/domain"}
    assert sorted(domain - _entries()) == []


def test_every_name_in_the_glossary_exists() -> None:
    assert sorted(_entries() - _names_of_the_code()) == []


def test_a_type_name_exists_once() -> None:
    homes = defaultdict(list)
    for name, path in _public_classes():
        homes[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("rule", [_EVERYDAY, _GRAMMAR], ids=["words of the field", "a noun is the subject"])
def test_docstrings_and_comments_are_plain_technical_english(rule: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words[0]}"
        for path, module in _modules().items()
        for line, prose in module.prose
        for words in rule.finditer(prose)
    ]
    assert found == []


def _page_lines() -> Iterator[tuple[Path, int, str]]:
    """Yields the prose of the user pages. It omits code, headings, addresses, and words of the chat page, which are in
    italics.
    """
    for page in PAGES:
        if page.is_relative_to(ROOT / "tests"):
            continue
        is_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code and not line.startswith("#"):
                yield page, number, re.sub(r"`[^`]*`|\]\([^)]*\)|(?<!\*)\*[^*]+\*(?!\*)", "", line)


def test_pages_are_plain_technical_english() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {words[0]}"
        for page, number, line in _page_lines()
        for words in _PAGES.finditer(line)
    ]
    assert found == []


def test_a_module_begins_with_what_it_is_for() -> None:
    for path, module in _modules().items():
        if not module.is_empty:
            assert module.header, f"{path} has no header"
            assert not re.match(r"(What|Who|Whom|Where|When|How|Which)\b", module.header), f"{path}: {module.header}"

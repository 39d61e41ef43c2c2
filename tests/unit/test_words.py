"""The words of the code: a complete and true glossary, type names that exist once, prose in plain technical English."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.events import CHAT_EVENTS, EVENTS, FEED_EVENTS, OVERVIEW_EVENTS
from app.storage.tables import metadata

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "app").rglob("*.py"))}
ALL_EVENTS = {*EVENTS, *CHAT_EVENTS, *FEED_EVENTS, *OVERVIEW_EVENTS}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}

# Words of everyday speech where the field has its own: decode, append, notify, return, name, must.
_EVERYDAY = re.compile(
    r"\b(hears?|heard|told|said|saying|whoever|shall|rung|somebody|by the way)\b",
    re.IGNORECASE,
)


def _public_classes() -> Iterator[tuple[str, Path]]:
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def _entries() -> set[str]:
    rows = re.findall(r"^\| .+ \| (.+) \|$", GLOSSARY, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _names_of_the_code() -> set[str]:
    names = ALL_EVENTS | set(metadata.tables)
    for tree in TREES.values():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case (
                    ast.arg(arg=name)
                    | ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    names.add(name)
                case _:
                    pass
    return names


def test_the_glossary_has_every_class_of_the_domain_every_table_and_every_event() -> None:
    domain = {name for name, path in _public_classes() if path.parent == ROOT / "app/domain"}
    assert sorted((domain | set(metadata.tables) | ALL_EVENTS) - _entries()) == []


def test_every_name_in_the_glossary_exists() -> None:
    assert sorted(_entries() - _names_of_the_code()) == []


def test_a_type_name_exists_once() -> None:
    homes = defaultdict(list)
    for name, path in _public_classes():
        homes[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments with their lines; names in backticks are code, not prose."""
    for token in tokenize.generate_tokens(io.StringIO(SOURCES[path]).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            yield getattr(node, "lineno", 1), re.sub(r"`[^`]*`", "", text)


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word[0]}"
        for path in SOURCES
        for line, text in _prose(path)
        for word in _EVERYDAY.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_begins_with_what_it_is_for(path: Path) -> None:
    header = ast.get_docstring(TREES[path])
    if TREES[path].body:
        assert header, "a module without a header"
        assert not re.match(r"(What|Who|Whom|Where|When|How|Which)\b", header), header

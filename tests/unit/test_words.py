"""The words of the code: a complete and true glossary, type names that exist once, prose in plain technical English."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from turnstream.api.events import CHAT_EVENTS, EVENTS, FEED_EVENTS
from turnstream.extensions.admin.schemas import OVERVIEW_EVENTS
from turnstream.storage.tables import metadata

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
ALL_EVENTS = {*EVENTS, *CHAT_EVENTS, *FEED_EVENTS, *OVERVIEW_EVENTS}

# Words of everyday speech where the field has its own: decode, append, notify, return, name, must.
_EVERYDAY = re.compile(
    r"\b(hears?|heard|told|said|saying|whoever|shall|rung|somebody|by the way)\b",
    re.IGNORECASE,
)

# A sentence has a noun as its subject, and a condition begins with "if" or "when".
_GRAMMAR = re.compile(
    r"\bNone where\b|\b(?:goes|go|going|went|gone) on\b|\banew\b|\bstands\b"
    r"|(?:^|[.] )(?:What|Where|Those|Whose|One that)\b"
)


@cache
def _modules() -> dict[Path, tuple[str, ast.Module]]:
    """Text and tree of each."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "app").rglob("*.py"))}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def _public_classes() -> Iterator[tuple[str, Path]]:
    for path, (_, tree) in _modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def _entries() -> set[str]:
    rows = re.findall(r"^\| .+ \| (.+) \|$", GLOSSARY, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _names_of_the_code() -> set[str]:
    names = ALL_EVENTS | set(metadata.tables)
    for _, tree in _modules().values():
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
    domain = {name for name, path in _public_classes() if path.parent == ROOT / "app/turnstream/domain"}
    assert sorted((domain | set(metadata.tables) | ALL_EVENTS) - _entries()) == []


def test_every_name_in_the_glossary_exists() -> None:
    assert sorted(_entries() - _names_of_the_code()) == []


def test_a_type_name_exists_once() -> None:
    homes = defaultdict(list)
    for name, path in _public_classes():
        homes[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def _prose(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings and comments with their lines; names in backticks are code, not prose."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), re.sub(r"`[^`]*`", "", ast.get_docstring(node) or "")


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word[0]}"
        for path, module in _modules().items()
        for line, prose in _prose(*module)
        for word in _EVERYDAY.finditer(prose)
    ]
    assert found == []


def test_a_noun_is_the_subject_of_a_sentence() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words[0]}"
        for path, module in _modules().items()
        for line, prose in _prose(*module)
        for words in _GRAMMAR.finditer(re.sub(r"^#\s*|\s+", " ", prose).strip())
    ]
    assert found == []


def test_a_module_begins_with_what_it_is_for() -> None:
    for path, (_, tree) in _modules().items():
        header = ast.get_docstring(tree)
        if tree.body:
            assert header, f"{path} has no header"
            assert not re.match(r"(What|Who|Whom|Where|When|How|Which)\b", header), f"{path}: {header}"

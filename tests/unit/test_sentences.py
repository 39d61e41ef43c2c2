"""Checks the length of sentences in pages and docstrings, and the form of the texts of refusals, in the source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT

LONGEST = 35  # the limit of words in a sentence, or in a part that ends in a colon or a semicolon
LONGEST_IN_PAGES = 25

_END = re.compile(r"(?<=[.!?:;])[\"*)]*\s+(?=\S)|(?<=[.!?])\*\* | · ")
_TREE = re.compile(r"^.*[├└│].*$", re.MULTILINE)  # the lines that draw the tree of errors


def sentences(prose: str) -> Iterator[str]:
    """Yields the sentences of paragraphs, items and cells. Code counts as one word, and a link's address as no word."""
    prose = re.sub(r"^\s*```.*?^\s*```\s*$", "\n", prose, flags=re.MULTILINE | re.DOTALL)
    for unit in _units(_TREE.sub("", prose)):
        words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", unit))
        yield from _END.split(words)


def _units(prose: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*prose.splitlines(), ""]:
        bare = line.strip()
        is_item = bool(re.match(r"([-*]|\d+\.) ", bare))
        if lines and (is_item or not bare or bare.startswith(("#", "|"))):
            yield " ".join(lines)
            lines = []
        if bare.startswith("|"):
            yield from bare.strip("|").split(" | ")
        elif bare and not bare.startswith("#"):
            lines.append(bare)


def length(sentence: str) -> int:
    return len(re.findall(r"[\w'-]+", sentence))


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "app").rglob("*.py"))}


def test_the_parts_of_a_page_are_counted_apart() -> None:
    page = "# A heading\n\nOne two.\nThree: four `five six`.\n\n- seven\n- eight\n\n| nine | ten |\n\n```sh\nno\n```\n"
    assert list(sentences(page)) == ["One two.", "Three:", "four X.", "- seven", "- eight", " nine", "ten "]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.is_relative_to(ROOT / "tests")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_sentence_of_a_page_is_too_long(page: Path) -> None:
    assert [each for each in sentences(page.read_text(encoding="utf-8")) if length(each) > LONGEST_IN_PAGES] == []


def test_no_sentence_of_a_docstring_is_too_long() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for sentence in sentences(ast.get_docstring(node) or "")
        if length(sentence) > LONGEST
    ]
    assert found == []


def _refusals() -> set[str]:
    """Returns the names of all classes that answer a request with a problem. The classes are found by their bases."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in _trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"RequestRefused"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found - {"NotOnStandby"}  # only the code sees this refusal, because the primary answers instead


def _texts() -> Iterator[tuple[str, str]]:
    """Yields each text of a refusal with its place in the code. `{…}` replaces a value in the text."""
    names = _refusals()
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(text)), *_]) if name in names:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text
                case ast.Call(func=ast.Name(id=name), args=[ast.JoinedStr(values=parts), *_]) if name in names:
                    words = [part.value if isinstance(part, ast.Constant) else "{…}" for part in parts]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, words))
                case _:
                    pass


# The text begins with a noun, a field or an instruction to the caller, never with a pronoun. A value may be a whole
# sentence.
_FORM = re.compile(r"(?!(?:It|They|One|Those|That|Its|What|Where|You)\b)(?:[A-Z`]|\{…\}).*(?:\.|\{…\})", re.DOTALL)


def test_the_text_of_a_refusal_is_a_sentence_with_a_noun_a_field_or_a_remedy() -> None:
    texts = list(_texts())
    assert len(texts) > 200
    assert [(place, text) for place, text in texts if not _FORM.fullmatch(text) or length(text) > LONGEST] == []

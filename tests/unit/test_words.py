"""The words of the code: the glossary is complete and true, a type name exists once, prose is plain technical English."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_docs import rows_after

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "app").rglob("*.py"))}

# Words of everyday speech where the field has its own: decode, append, notify, return, name, whichever, must.
EVERYDAY = re.compile(r"\b(hears?|heard|tells?|told|says?|said|saying|whoever|shall|rings?|rung|nobody|somebody)\b", re.IGNORECASE)


def _classes() -> Iterator[tuple[str, Path]]:
    for path, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def test_a_type_name_exists_once() -> None:
    homes = defaultdict(list)
    for name, path in _classes():
        homes[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}

"""The extensions whose tests belong to this run, and the extensions that a module of tests needs."""

import os
import re
from collections.abc import Set
from functools import cache
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from turnstream.config import Settings
from turnstream.extension import installed, selected

ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = ROOT / "tests/extensions"
_IMPORT: Final = re.compile(r"^(?:from|import) (turnstream\.extensions|tests)\.([\w.]+)", re.MULTILINE)


@cache
def complete() -> Set[str]:
    """Returns the extensions in TURNSTREAM_EXTENSIONS for which the packages of their extras are installed."""
    needed = [Requirement(text) for text in requires("turnstream") or ()]
    present = {canonicalize_name(each.name) for each in distributions()}

    def has_packages(extension: str) -> bool:
        extra = [each.name for each in needed if each.marker and each.marker.evaluate({"extra": extension})]
        return all(canonicalize_name(name) in present for name in extra)

    settings = Settings(_env_file=None, extensions=os.environ.get("TURNSTREAM_EXTENSIONS"))
    return {each.name for each in selected(settings) if has_packages(each.name)}


@cache
def are_all_complete() -> bool:
    return complete() == installed().keys()


def needed_by(module: Path) -> Set[str]:
    """Returns the extensions that a module of tests imports, directly or indirectly, and the extension of its
    folder.
    """
    found, seen, left = set[str](), set[Path](), [module]
    while left:
        path = left.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        if path.is_relative_to(_FOLDER) and path.parent != _FOLDER:
            found.add(path.relative_to(_FOLDER).parts[0])
        for package, name in _IMPORT.findall(path.read_text(encoding="utf-8")):
            if package == "tests":
                left.append((ROOT / "tests" / name.replace(".", "/")).with_suffix(".py"))
            else:
                found.add(name.partition(".")[0])
    return found

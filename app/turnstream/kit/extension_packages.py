"""Finds the packages of installed extensions without importing the packages."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

GROUP: Final = "turnstream.extensions"  # the group of the entry points that extensions declare


def extension_packages() -> Mapping[str, Path]:
    """Returns the folder of each package, by name. An extension that is a single module has no folder."""
    names = sorted({point.module for point in entry_points(group=GROUP)})
    specs = {name: find_spec(name) for name in names}
    return {
        name: Path(folder) for name, spec in specs.items() if spec for folder in spec.submodule_search_locations or ()
    }

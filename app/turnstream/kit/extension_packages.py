"""The packages of installed extensions, which are found without an import of them."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

GROUP: Final = "turnstream.extensions"  # of the entry points


def extension_packages() -> Sequence[Path]:
    """Their folders. An extension that is a single module has none."""
    specs = [find_spec(point.module) for point in entry_points(group=GROUP)]
    return sorted({Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()})

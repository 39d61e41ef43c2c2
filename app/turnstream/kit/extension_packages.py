"""The packages of installed extensions, which are found without an import of them."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

GROUP: Final = "turnstream.extensions"  # of the entry points


def extension_packages() -> Mapping[str, Path]:
    """Their folders, by their names. An extension that is a single module has none."""
    names = sorted({point.module for point in entry_points(group=GROUP)})
    specs = {name: find_spec(name) for name in names}
    return {
        name: Path(folder) for name, spec in specs.items() if spec for folder in spec.submodule_search_locations or ()
    }

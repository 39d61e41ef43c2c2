"""All tables: those of the core, and those of the installed extensions, which their modules `tables` define."""

from importlib import import_module

from turnstream.kit.extension_packages import extension_packages
from turnstream.storage.tables import metadata

for _module, _folder in extension_packages().items():
    if (_folder / "tables.py").is_file():
        import_module(f"{_module}.tables")

__all__ = ["metadata"]

"""The budgets of the core and of the documentation. `make check` runs this module."""

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from turnstream.api.services import Services
from turnstream.config import Settings

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "app/turnstream"
# Packages and modules that only extensions and the lab import. A server without extensions does not load them.
LIBRARIES = ("libraries", "scripted", "web")


def parts() -> Mapping[str, list[Path]]:
    """Returns the files of each part. The core is the server without extensions and their libraries, with the
    migrations.
    """
    modules = [*(ROOT / "app").rglob("*.py")]
    migrations = [path for path in (ROOT / "migrations").rglob("*") if path.suffix in {".py", ".sql"}]
    folders = {
        path: path.relative_to(SERVER).with_suffix("").parts[0] for path in modules if path.is_relative_to(SERVER)
    }
    libraries = [path for path, folder in folders.items() if folder in LIBRARIES]
    extensions = [path for path, folder in folders.items() if folder == "extensions"]
    return {
        "core": [*folders.keys() - {*libraries, *extensions}, *migrations],
        "libraries of extensions": libraries,
        "extensions": extensions,
        "distributions": [path for path in modules if path not in folders],
    }


def lines_of(files: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def spent() -> Mapping[str, int]:
    return {
        "lines": lines_of(parts()["core"]),
        "settings": len(Settings.model_fields),
        "services": len(Services.__dataclass_fields__),
        "documentation_kb": -(-sum(page.stat().st_size for page in (ROOT / "docs").rglob("*.md")) // 1000),
    }


def main() -> None:
    """Prints the lines of each part. Exits with 1 if a part exceeds `[tool.turnstream.budget]` in pyproject.toml."""
    print("lines:", ", ".join(f"{part} {lines_of(files):,}" for part, files in parts().items()))
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["turnstream"]["budget"]
    over = {name: count for name, count in spent().items() if count > limits[name]}
    for name, count in over.items():
        remedy = "shorten a page of docs" if name == "documentation_kb" else "move something into an extension"
        print(f"{name}: {count:,}; the budget is {limits[name]:,}: {remedy}")
    sys.exit(bool(over))


if __name__ == "__main__":
    main()

"""The budget of the core: what passes it moves something into an extension first. `make check` calls this module."""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from turnstream.api.services import Services
from turnstream.config import Settings

ROOT = Path(__file__).parents[2]
EXTENSIONS = ROOT / "app/turnstream/extensions"


def core_files() -> list[Path]:
    """The modules of the server without extensions, and the migrations, with their SQL."""
    server = [path for path in (ROOT / "app/turnstream").rglob("*.py") if not path.is_relative_to(EXTENSIONS)]
    return server + [path for path in (ROOT / "migrations").rglob("*") if path.suffix in {".py", ".sql"}]


def spent() -> Mapping[str, int]:
    return {
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in core_files()),
        "settings": len(Settings.model_fields),
        "services": len(Services.__dataclass_fields__),
    }


def main() -> None:
    """Exits with 1 where more was spent than `[tool.turnstream.budget]` of pyproject.toml allows."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["turnstream"]["budget"]
    over = {name: count for name, count in spent().items() if count > limits[name]}
    for name, count in over.items():
        print(f"the core has {count:,} {name}; its budget is {limits[name]:,}: move something into an extension")
    sys.exit(bool(over))


if __name__ == "__main__":
    main()

"""Environments with wheels of this tree."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel(folder: Path, project: Path) -> Path:
    target = folder / project.name
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target), cwd=project)
    (built,) = target.glob("*.whl")
    return built


def installed(folder: Path, *projects: Path) -> Path:
    """Creates an environment with these projects but without their dependencies, and returns its `bin` folder."""
    return environment(folder, *(wheel(folder, project) for project in projects))


def environment(folder: Path, *wheels: Path) -> Path:
    """Creates an environment with only these wheels, and returns its `bin` folder."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", *map(str, wheels))
    return python.parent


def site_of(programs: Path) -> Path:
    (site,) = (programs.parent / "lib").glob("python*/site-packages")
    return site


def link_dependencies(programs: Path, name: str, extras: Iterable[str] = ()) -> None:
    """Links the dependencies of the distribution `name` from the environment of the tests into the new environment."""
    for each in dependencies(name, extras).values():
        for part in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            link = site_of(programs) / part
            if not link.exists():
                link.symlink_to(str(each.locate_file(part)))


def dependencies(name: str, extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """Returns all dependencies of a distribution by name, without the distributions of this tree."""
    found: dict[str, Distribution] = {}
    seen, left = set[tuple[str, frozenset[str]]](), [*_required(name, extras)]
    while left:
        needed = left.pop()
        key = (_plain(needed.name), frozenset(needed.extras))
        if key not in seen and not key[0].startswith("turnstream"):
            seen.add(key)
            found[key[0]] = distribution(needed.name)
            left += _required(needed.name, needed.extras)
    return found


def extras(name: str) -> list[str]:
    return distribution(name).metadata.get_all("Provides-Extra") or []


def _required(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""The code of this repository as it was before its newest migration, or at the commit in `VERSION_BEFORE`, taken from
the history of git.
"""

import io
import os
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from turnstream.storage.migrations import newest_revision, present_revision
from turnstream.storage.sql_files import FOLDER

ROOT = Path(__file__).parents[2]
_PARTS = (
    "app",
    "migrations",
    "pyproject.toml",
    "tests/__init__.py",
    "tests/faults/__init__.py",
    "tests/faults/replica.py",
)


class NoHistory(Exception):
    """Raised if the history does not reach back so far, because this is no clone or a shallow one."""


@dataclass(frozen=True)
class VersionBefore:
    """A version whose code is in `folder`. `revision` is its newest migration."""

    folder: Path
    revision: str

    @property
    def python_path(self) -> str:
        """The value of PYTHONPATH. In older versions `app` itself is the package."""
        source = self.folder / "app"
        return f"{self.folder}:{source}" if (source / "turnstream").is_dir() else str(self.folder)

    async def check_revision(self, url: str) -> None:
        """Checks that only this version has migrated the database, which proves that no server used the code of the
        tree.
        """
        assert await present_revision(url) == self.revision != newest_revision()


def unpack_version_before(folder: Path, migration: str | None = None) -> VersionBefore:
    """Unpacks the code as it was before the migration of this name, or before the newest migration. The migration is
    found by name because numbers change. Raises NoHistory.
    """
    if _git("rev-parse", "--show-toplevel").decode().strip() != str(ROOT):
        raise NoHistory("this tree is no clone of the repository")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", _commit_before(migration), "--", *_PARTS))) as archive:
        archive.extractall(folder, filter="data")
    _install(folder)
    return VersionBefore(folder, max(_revisions(folder / "migrations")))


def _install(folder: Path) -> None:
    """Replaces the entry points of the tree by those of this version, because the first distribution on the path
    applies.
    """
    for file in (ROOT / "pyproject.toml", *ROOT.glob("app/*/pyproject.toml")):
        now = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        before = folder / file.relative_to(ROOT)
        project = tomllib.loads(before.read_text(encoding="utf-8"))["project"] if before.is_file() else {}
        name, version = now["name"], project.get("version", now["version"])
        about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            line
            for group, points in project.get("entry-points", {}).items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        (about / "entry_points.txt").write_text("\n".join(lines))


def _commit_before(migration: str | None) -> str:
    """Returns the parent of the commit that added the migration, because later commits may have changed it. A merge
    counts as one commit. Returns the last commit if the migration is not committed yet.
    """
    if migration is None and (named := os.environ.get("VERSION_BEFORE")):
        return named
    files = FOLDER / "versions"
    file = max(files.glob("*.py")) if migration is None else f":(glob){files}/????_{migration}.py"
    line = ("log", "-m", "--first-parent", "--diff-filter=A", "--no-renames", "--format=%H")
    added = _git(*line, "--", str(file)).decode().split()
    return _git("rev-parse", "--verify", f"{added[-1]}^" if added else "HEAD").decode().strip()


def _revisions(migrations: Path) -> list[str]:
    return [file.name.partition("_")[0] for file in (migrations / "versions").glob("*.py")]


def _git(*arguments: str) -> bytes:
    # The clone may belong to another user than the user who runs the tests.
    command = ("git", "-C", str(ROOT), "-c", "safe.directory=*", *arguments)
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise NoHistory(f"the history of git does not have the version before: {done.stderr.decode().strip()}")
    return done.stdout

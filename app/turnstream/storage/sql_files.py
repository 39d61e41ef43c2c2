"""The SQL files of the core and of extensions: tables, functions and triggers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from turnstream.kit.extension_packages import extension_packages

_PACKAGE = Path(__file__).parents[1]
# A wheel has the folder of migrations inside the package; the source tree has it beside the package.
FOLDER = next(filter(Path.is_dir, [_PACKAGE / "migrations"]), _PACKAGE.parents[1] / "migrations")


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A file that creates a function or a trigger. `name` is its path in a folder `sql`: functions/NAME, called/NAME
    for a function that the API's role calls, or triggers/TABLE.NAME.
    """

    name: str
    sql: str

    @property
    def digest(self) -> str:
        return sha256(self.sql.encode()).hexdigest()

    @property
    def table(self) -> str | None:
        kind, _, name = self.name.partition("/")
        return name.partition(".")[0] if kind == "triggers" else None


@cache
def _sql_folders() -> Sequence[Path]:
    """Returns the folders of the core and of all installed extensions, even if an extension is disabled. The tables and
    triggers of a disabled extension stay in the database, and need its functions.
    """
    return [FOLDER / "sql", *(package / "sql" for package in extension_packages().values())]


@cache
def sql_files() -> Sequence[SqlFile]:
    """Returns all files, functions before triggers, because triggers call functions."""
    paths = sorted(
        (path for folder in _sql_folders() for path in folder.glob("*/*.sql")),
        key=lambda path: (path.parent.name, path.name),
    )
    return [SqlFile(f"{path.parent.name}/{path.stem}", path.read_text(encoding="utf-8")) for path in paths]


def functions(*, called: bool = False) -> Sequence[str]:
    """Returns the names of the functions in the files; with `called`, only functions that the API's role calls."""
    names = [file.name.partition("/") for file in sql_files() if file.table is None]
    return [name for kind, _, name in names if kind == "called" or not called]


def schema_files() -> Sequence[Path]:
    """Returns all files, the core's file first, because tables of extensions refer to tables of the core."""
    return [FOLDER / "schema.sql", *filter(Path.is_file, (folder / "schema.sql" for folder in _sql_folders()))]


def step_files() -> Sequence[Path]:
    """Returns the files with the steps of databases older than the oldest revision in `versions` (`old_databases`)."""
    return [*filter(Path.is_file, (folder / "steps.sql" for folder in _sql_folders()))]

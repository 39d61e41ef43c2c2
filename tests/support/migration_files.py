"""The digests of `migrations/versions.sha256`. Databases may already have the listed revisions, so these files never
change.
"""

from collections.abc import Mapping
from hashlib import sha256

from turnstream.storage.migrations import newest_revision
from turnstream.storage.sql_files import FOLDER, sql_files, step_files

_LIST = FOLDER / "versions.sha256"


def listed() -> Mapping[str, str]:
    """Returns the listed digests. Each name is a revision's file, or the state of `sql/` that belongs to a revision."""
    lines = (line.split("  ") for line in _LIST.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def present() -> Mapping[str, str]:
    """Returns the digests of the tree. A changed function or trigger needs a new revision, because servers find out by
    the revision which version of the function is newer.
    """
    files = [*sorted((FOLDER / "versions").glob("*.py")), *step_files()]
    of_sql = sha256("".join(f"{file.name} {file.digest}\n" for file in sql_files()).encode())
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files} | {
        f"sql/ of {newest_revision()}": of_sql.hexdigest()
    }


def main() -> None:
    """Adds the new revisions to the list."""
    with _LIST.open("a", encoding="utf-8") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in present().items() if name not in listed())


if __name__ == "__main__":
    main()

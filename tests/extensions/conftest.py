"""The folder of an extension has its name. Its tests are left out if it, or a package of its extra, is missing."""

from importlib.metadata import distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.integration.api.conftest import api, database, document, new_owner, plain_logs, server
from tests.integration.conftest import attempts_are_counted, harness
from turnstream.extension import installed

__all__ = ("api", "attempts_are_counted", "database", "document", "harness", "new_owner", "plain_logs", "server")

FOLDER = Path(__file__).parent


def _is_complete(extension: str) -> bool:
    needed = [Requirement(text) for text in requires("turnstream") or ()]
    extra = [each.name for each in needed if each.marker and each.marker.evaluate({"extra": extension})]
    present = {canonicalize_name(each.name) for each in distributions()}
    return extension in installed() and all(canonicalize_name(name) in present for name in extra)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    is_of_extension = collection_path.is_dir() and collection_path.parent == FOLDER
    return True if is_of_extension and not _is_complete(collection_path.name) else None

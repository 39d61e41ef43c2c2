"""A server that does not have the extension for the tools file."""

from functools import partial
from pathlib import Path

import pytest

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import installed, selected
from turnstream.setup.toolset import declared_tools

OTHERS = [each for each in installed().values() if each.name != "tools_file"]
WITH_KINDS = [each.name for each in OTHERS if each.tool_sources(Settings(_env_file=None))]


def test_the_setting_of_the_file_stops_the_start(tmp_path: Path) -> None:
    """The policies in the file may require approvals, so a server must not start and ignore the file."""
    named = Settings(_env_file=None, extensions="demo", tools_file=tmp_path / "tools.toml")
    of_a_program = partial(selected, named, [installed()["demo"]])
    for start in (partial(selected, named), of_a_program):
        with pytest.raises(ConfigError, match="TURNSTREAM_TOOLS_FILE is a setting of the extension tools_file, "):
            start()


@pytest.mark.parametrize("name", WITH_KINDS)
def test_an_extension_with_kinds_of_sources_needs_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^The extension {name} needs the extension tools_file, which this server"):
        declared_tools(Settings(_env_file=None), [installed()[name]], {})


def test_a_server_without_kinds_needs_no_file() -> None:
    without = [each for each in OTHERS if each.name not in WITH_KINDS]
    assert declared_tools(Settings(_env_file=None), without, {}).loaded == ()
    assert len(WITH_KINDS) >= 4

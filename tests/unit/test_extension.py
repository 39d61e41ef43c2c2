"""The extensions of a server: the settings select them from the installed extensions."""

import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from tests.support.extensions import needed_by
from tests.support.pages import ROOT
from turnstream import extension
from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, installed, selected
from turnstream.kit.extension_packages import GROUP

Install = Callable[..., None]
FIRST, SECOND = Extension("first", "a first one"), Extension("second", "a second one")
NOT_ONE = "nothing"


class LoginSettings(Section):
    login: str | None = None


THIRD = Extension("third", "a third one", settings=LoginSettings)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replaces all installed entry points by these names and values."""

    def install(**values: str) -> None:
        points = [EntryPoint(name, value, GROUP) for name, value in values.items()]
        monkeypatch.setattr(extension, "entry_points", lambda group: points if group == GROUP else [])
        installed.cache_clear()

    yield install
    installed.cache_clear()


def chosen(names: str | None) -> list[str]:
    return [each.name for each in selected(Settings(_env_file=None, extensions=names))]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ["first", "second"]),
        ("none", []),
        ("second", ["second"]),
        (" second , first,second,", ["second", "first"]),
    ],
)
def test_all_that_are_installed_are_active_unless_some_are_named(
    install: Install, names: str | None, expected: list[str]
) -> None:
    install(second=f"{__name__}:SECOND", first=f"{__name__}:FIRST")
    assert chosen(names) == expected


def test_an_unknown_name_is_refused_with_those_that_are_installed(install: Install) -> None:
    install(first=f"{__name__}:FIRST")
    with pytest.raises(ConfigError, match=r"names third, which is not installed\. Installed: first\."):
        chosen("first, third")


def test_a_setting_of_an_extension_that_is_left_out_is_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a setting requires a login, a server without the login's extension must refuse to start, and not serve
    everyone.
    """
    install(first=f"{__name__}:FIRST", third=f"{__name__}:THIRD")
    assert chosen("first") == ["first"]
    monkeypatch.setenv("TURNSTREAM_LOGIN", "here")
    assert chosen("third") == ["third"]
    assert selected(Settings(_env_file=None), [THIRD]) == [THIRD], "of an embedding program"
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_LOGIN is a setting of the extension third"):
        selected(Settings(_env_file=None), [FIRST])
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_LOGIN is a setting of the extension third"):
        chosen("first")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("first", "no_such_module:FIRST", "The extension first .* cannot be loaded: ModuleNotFoundError"),
        ("first", f"{__name__}:NOT_ONE", "The extension first .* must be an Extension of that name"),
        ("other", f"{__name__}:FIRST", "The extension other .* must be an Extension of that name"),
    ],
)
def test_an_entry_point_without_its_extension_is_refused_by_name(
    install: Install, name: str, value: str, sentence: str
) -> None:
    install(**{name: value})
    with pytest.raises(ConfigError, match=sentence):
        installed()


# --- tests of extensions ---------------------------------------------------------------------------------------------


def test_a_module_of_tests_needs_the_extension_of_its_folder_and_those_that_it_imports() -> None:
    assert needed_by(ROOT / "tests/unit/test_extension.py") == set()
    assert needed_by(ROOT / "tests/extensions/mcp/test_traces.py") == {"mcp", "otel"}, "the second by tests/support"


def test_tests_are_marked_with_names_of_extensions() -> None:
    """An extension with a misspelt name is never installed, so a test that is marked with the name would never run."""
    projects = (
        tomllib.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "pyproject.toml", *ROOT.glob("app/*/pyproject.toml"))
    )
    names = {name for each in projects for name in each["project"].get("entry-points", {}).get(GROUP, {})}
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")]
    marks = [mark for text in texts for mark in re.findall(r"mark\.extensions\(([\"\w, ]+)\)", text)]
    marked = {name for mark in marks for name in re.findall(r"\w+", mark)}
    assert "openai_api" in marked
    assert marked <= names

"""Which extensions a server has: those that are installed, of these the selected ones."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from turnstream import extension
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import GROUP, Extension, installed, selected

Install = Callable[..., None]
FIRST, SECOND = Extension("first", "a first one"), Extension("second", "a second one")
NOT_ONE = "nothing"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes entry points, by name and value, all that are installed."""

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

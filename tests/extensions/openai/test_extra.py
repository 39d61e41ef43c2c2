"""If a provider needs the extra's package and the package is missing, the start fails."""

import importlib.util
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from tests.support.model_apis import EXTENSIONS
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.libraries import extras
from turnstream.libraries.providers.models import default_model


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "openai" else importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "find_spec", find_spec)


def settings(**keys: str) -> Settings:
    given: dict[str, Any] = {"anthropic_api_key": None, "openai_api_key": None, "gemini_api_key": None, **keys}
    return Settings(_env_file=None, **given)


def test_a_key_of_openai_stops_the_start_with_the_command_that_installs_the_package() -> None:
    with pytest.raises(
        ConfigError, match=r"^The provider openai of the file of models needs .*: pip install 'turnstream\[openai\]'\.$"
    ):
        default_model(settings(openai_api_key="sk-0"), EXTENSIONS)


def test_other_providers_need_no_package_of_openai() -> None:
    assert default_model(settings(anthropic_api_key="sk-0"), EXTENSIONS) == "claude-sonnet-5-5"
    assert default_model(settings(), EXTENSIONS) == "demo"


async def test_a_replay_has_the_models_whose_packages_are_there() -> None:
    offline = pytest.importorskip("turnstream_lab.offline")
    async with offline.offline_models(settings(), EXTENSIONS, []) as models:
        assert {models.provider_name(name) for name in ("claude-sonnet-5-5", "demo", "gpt-5")} == {
            "anthropic",
            "demo",
            None,
        }

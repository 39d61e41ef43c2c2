"""The model of a turn whose request names no model."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.model_apis import EXTENSIONS
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.libraries.providers import models as setup
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.scripted import ScriptedProvider
from turnstream.setup.parts import default_among

NO_KEYS: dict[str, Any] = {"anthropic_api_key": None, "openai_api_key": None, "gemini_api_key": None}


def default_model(given: Settings) -> str:
    return setup.default_model(given, EXTENSIONS)


def served_model(given: Settings) -> str:
    return setup.served_model(given, EXTENSIONS)


def settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **{**NO_KEYS, **given})


def test_without_a_key_there_is_the_demo_and_no_other() -> None:
    assert default_model(settings()) == default_model(settings(model="demo")) == "demo"
    with pytest.raises(ConfigError, match=r"TURNSTREAM_MODEL must be one of demo: there is no model 'nope' here\.$"):
        default_model(settings(model="nope"))


def test_with_a_key_any_name_may_be_one_that_a_gateway_knows() -> None:
    assert default_model(settings(anthropic_api_key="sk-secret")) == "claude-sonnet-5-5"
    for name in ("claude-new", "claude-haiku-5-5", "what the gateway calls it"):
        assert default_model(settings(anthropic_api_key="sk-secret", model=name)) == name


def test_the_order_of_providers_decides_and_not_the_names_of_extensions(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    own = '[providers.zeta]\napi = "openai-chat"\n[providers.beta]\napi = "openai-chat"\n'
    listed = "".join(f'[models.of-{name}]\nprovider = "{name}"\n' for name in ("zeta", "beta", "openai"))
    file.write_text(own + listed)
    keys = dict.fromkeys(("openai_api_key", "gemini_api_key"), "sk-secret")
    assert default_model(settings(**keys, models_file=file)) == "of-openai"
    assert default_model(settings(openai_api_key="sk-secret", models_file=file)) == "of-openai"
    assert default_model(settings(gemini_api_key="sk-secret", models_file=file)).startswith("gemini-")
    assert default_model(settings(models_file=file)) == "of-zeta"
    # without a file of models, no model of OpenAI is listed
    assert default_model(settings(**keys)).startswith("gemini-")
    assert default_model(settings(**keys, anthropic_api_key="sk-secret", models_file=file)) == "claude-sonnet-5-5"


async def test_a_name_that_no_provider_claims_is_for_the_first_one() -> None:
    given = settings(openai_api_key="sk-secret", gemini_api_key="sk-secret", model="what the gateway calls it")
    async with setup.open_models(given, EXTENSIONS) as models:
        assert models.provider_name("what the gateway calls it") == "openai"
        assert models.provider_name("gemini-next") == "gemini"


def test_of_models_that_a_program_gives_it_is_one_of_theirs() -> None:
    models = Models([ProviderModels(ScriptedProvider([]), ["small", "big"], ["x-"])])
    assert [default_among(models, wanted) for wanted in (None, "big", "x-1")] == ["small", "big", "x-1"]
    with pytest.raises(
        ConfigError, match=r"TURNSTREAM_MODEL must be one of small, big: there is no model 'nope' here\.$"
    ):
        default_among(models, "nope")


def test_the_demo_answers_others_only_where_it_is_named() -> None:
    assert [served_model(settings(host=host)) for host in ("127.0.0.1", "::1", "localhost")] == ["demo"] * 3
    assert served_model(settings(host="0.0.0.0", model="demo")) == "demo"
    assert served_model(settings(host="0.0.0.0", anthropic_api_key="sk-secret")) != "demo"
    with pytest.raises(ConfigError, match=r"^TURNSTREAM_HOST is 0\.0\.0\.0, .* or TURNSTREAM_MODEL=demo"):
        served_model(settings(host="0.0.0.0"))


def test_without_a_key_and_without_the_demo_the_start_names_both_ways() -> None:
    with pytest.raises(
        ConfigError, match=r"^No provider of models has its key: set ANTHROPIC_API_KEY .* extension of a provider"
    ):
        setup.default_model(settings(), [])

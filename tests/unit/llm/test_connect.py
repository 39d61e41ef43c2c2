"""Clients for the providers of the registry."""

from pathlib import Path

from app.llm.anthropic.provider import AnthropicProvider
from app.llm.models.catalog import Models
from app.llm.models.connect import connect_providers
from app.llm.models.registry import read_registry
from app.llm.models.think_tags import ThinkTagFilter
from app.llm.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider


async def test_every_provider_that_has_its_key_can_be_asked() -> None:
    specs = read_registry(None, {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"})
    async with connect_providers(specs) as offers:
        models = Models(offers)
        assert isinstance(models.provider_for("claude-sonnet-5-5"), AnthropicProvider)
        openai = models.provider_for("gpt-5")
        assert isinstance(openai, OpenAIChatProvider)
        assert openai.name == "openai"


async def test_openai_can_be_asked_by_its_newer_api(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[providers.openai]\napi = "openai-responses"\n')
    async with connect_providers(read_registry(file, {"OPENAI_API_KEY": "b"})) as offers:
        openai = Models(offers).provider_for("gpt-6-sol")
        assert isinstance(openai, OpenAIResponsesProvider)
        assert openai.name == "openai"


async def test_a_model_with_think_tags_is_filtered(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    server = '[providers.local]\napi = "openai-chat"\nbase_url = "http://gpu/v1"\n'
    file.write_text(
        f'{server}[models.qwen]\nprovider = "local"\nthink_tags = true\n[models.llama]\nprovider = "local"\n'
    )
    async with connect_providers(read_registry(file, {})) as offers:
        models = Models(offers)
        assert isinstance(models.provider_for("qwen"), ThinkTagFilter)
        assert isinstance(models.provider_for("llama"), OpenAIChatProvider)

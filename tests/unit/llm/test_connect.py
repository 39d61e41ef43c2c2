"""Clients for the providers in the registry."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.model_apis import providers_of
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.extensions.openai.think_tags import ThinkTagFilter
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.connect import OnDemand, connect_providers
from turnstream.llm.models.catalog import Models
from turnstream.llm.provider import MessageEnded, ModelRequest, OwnedProvider, Part, Provider, kept_open
from turnstream.scripted import ScriptedProvider, message_of, text


async def adapter_of(provider: Provider) -> OwnedProvider:
    assert isinstance(provider, OnDemand)
    return await provider.adapter()


async def test_every_provider_that_has_its_key_can_be_asked() -> None:
    specs = providers_of(None, {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"})
    async with connect_providers(specs) as offers:
        models = Models(offers)
        assert isinstance(await adapter_of(models.provider_for("claude-sonnet-5-5")), AnthropicProvider)
        openai = models.provider_for("gpt-5")
        assert isinstance(await adapter_of(openai), OpenAIChatProvider)
        assert openai.name == "openai"


async def test_an_adapter_is_made_at_the_first_call_once_and_closed_at_the_end() -> None:
    (spec,) = providers_of(None, {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"})
    made: list[AnthropicProvider] = []

    closed: list[AnthropicProvider] = []

    class Made(AnthropicProvider):
        def __init__(self, *_: object) -> None:
            assert threading.current_thread() is not threading.main_thread()
            super().__init__("a", spec.base_url)
            made.append(self)

        async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
            yield [MessageEnded()]

        async def count(self, request: ModelRequest) -> int:
            return 7

        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    provider, request = (
        OnDemand(replace(spec, api=replace(spec.api, connect=Made, module=None))),
        ModelRequest("claude-sonnet-5-5", ()),
    )
    await provider.aclose()  # There is no client to close yet.
    async with kept_open(provider):  # There is no connection to keep yet.
        assert made == []
    first = await asyncio.gather(*(_read(provider, request) for _ in range(2)))
    assert [*first, await _read(provider, request)] == [[[MessageEnded()]]] * 3
    assert await provider.count(request) == 7
    async with kept_open(provider):
        pass
    await provider.aclose()
    assert len(made) == 1
    assert closed == made


async def test_an_adapter_of_another_kind_has_no_headers_to_observe() -> None:
    class Own(ScriptedProvider):
        name = "own"

        async def aclose(self) -> None: ...

    (spec,) = providers_of(None, {"ANTHROPIC_API_KEY": "a"})
    own = Own([message_of(text("Ahoy."))])
    provider = OnDemand(replace(spec, api=replace(spec.api, connect=lambda *_: own, module=None)))
    provider.observe(lambda _model, _headers: None)
    assert await _read(provider, ModelRequest("claude-sonnet-5-5", ()))


async def _read(provider: OnDemand, request: ModelRequest) -> list[Sequence[Part]]:
    return [parts async for parts in provider.stream(request)]


async def test_openai_can_be_asked_by_its_newer_api(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[providers.openai]\napi = "openai-responses"\n')
    async with connect_providers(providers_of(file, {"OPENAI_API_KEY": "b"})) as offers:
        openai = Models(offers).provider_for("gpt-6-sol")
        assert isinstance(await adapter_of(openai), OpenAIResponsesProvider)
        assert openai.name == "openai"


def test_older_models_of_anthropic_continue_an_answer_and_newer_ones_do_not() -> None:
    models = {model.id: model for spec in providers_of(None, {"ANTHROPIC_API_KEY": "a"}) for model in spec.models}
    assert models["claude-opus-4-5"].prefill
    assert not models["claude-opus-5"].prefill


async def test_a_model_with_think_tags_is_filtered(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    server = '[providers.local]\napi = "openai-chat"\nbase_url = "http://gpu/v1"\n'
    file.write_text(
        f'{server}[models.qwen]\nprovider = "local"\nthink_tags = true\n[models.llama]\nprovider = "local"\n'
    )
    async with connect_providers(providers_of(file, {})) as offers:
        models = Models(offers)
        assert isinstance(models.provider_for("qwen"), ThinkTagFilter)
        assert isinstance(await adapter_of(models.provider_for("llama")), OpenAIChatProvider)

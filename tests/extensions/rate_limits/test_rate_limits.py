"""Calls to a provider that enforces its limits, over real sockets."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.rate_limits.limited_provider import MODEL, LimitedProvider, key_of
from tests.support.canned import served
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import installed
from turnstream.extensions.rate_limits import EXTENSION
from turnstream.extensions.rate_limits.amounts import NONE, Amounts, RateLimits
from turnstream.extensions.rate_limits.pool import KeyPool, key_id, pool_of
from turnstream.libraries.providers.connect import connect_providers
from turnstream.libraries.providers.models import open_models
from turnstream.llm.models.api import ProviderSpec
from turnstream.llm.models.catalog import Model, Models

(ANTHROPIC,) = installed()["anthropic"].providers(Settings(_env_file=None))
FIVE_A_SECOND = RateLimits.per_minute(requests=300)
KEYS = ("sk-first", "sk-second")


def spec_of(provider: LimitedProvider, keys: Sequence[str] = KEYS[:1], **limits: int) -> ProviderSpec:
    models = (Model(MODEL),)
    return ProviderSpec(
        "limited", ANTHROPIC, keys[0], provider.url, None, (), {}, (), None, models, keys=tuple(keys), limits=limits
    )


@asynccontextmanager
async def limited(
    database_url: str, provider: LimitedProvider, keys: Sequence[str] = KEYS[:1], wait: float = 60.0, **more: Any
) -> AsyncIterator[tuple[Server, KeyPool]]:
    """Runs a server that has only this provider."""
    async with served(provider), replica(database_url, provider, keys, wait, **more) as found:
        yield found


@asynccontextmanager
async def replica(
    database_url: str, provider: LimitedProvider, keys: Sequence[str] = KEYS[:1], wait: float = 60.0, **more: Any
) -> AsyncIterator[tuple[Server, KeyPool]]:
    async with connect_providers([spec_of(provider, keys)], pool=pool_of(wait)) as (offer,):
        assert isinstance(offer.provider, KeyPool)
        settings = {"model": MODEL, "max_retries": 0, **more}
        async with serving(database_url, offers=[offer], **settings) as server:
            yield server, offer.provider


async def statuses(api: Client, turns: int, words: str = "Hi") -> list[str]:
    async def one() -> str:
        said = await api.ask(await api.chat(), words)
        status: str = said.assistant["status"]
        return status

    return list(await asyncio.gather(*(one() for _ in range(turns))))


async def test_calls_wait_for_limits_that_headers_report(database_url: str) -> None:
    provider = LimitedProvider(limits=FIVE_A_SECOND, start=Amounts(3, math.inf, math.inf, math.inf))
    async with limited(database_url, provider) as (server, _), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]  # the response to this call reports the limits
        assert await statuses(api, 10) == ["complete"] * 10
    assert provider.turned_away.total() == 0
    assert provider.accepted.total() == 11


async def test_a_reader_sees_when_a_waiting_call_starts(database_url: str) -> None:
    slow = RateLimits.per_minute(requests=30)
    provider = LimitedProvider(limits=slow, start=Amounts(1, math.inf, math.inf, math.inf))
    async with limited(database_url, provider) as (server, _), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]
        said = await api.say(await api.chat())
        events = await api.events(said.stream_url)
    notices = [event.data for event in events if event.name == "status"]
    stages = [each["stage"] for each in notices]
    assert stages[-3:] == ["waiting", "processing", "streaming"]
    assert 0 < notices[-3]["seconds"] <= 2.0
    assert events[-1].name == "turn_complete"


async def test_a_waiting_turn_can_be_cancelled_and_the_next_call_continues(database_url: str) -> None:
    slow = RateLimits.per_minute(requests=30)
    provider = LimitedProvider(limits=slow, start=Amounts(1, math.inf, math.inf, math.inf))
    async with limited(database_url, provider) as (server, pool), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]
        first = await api.say(await api.chat())
        async with api.follow(first.stream_url) as events:
            async for event in events:
                if event.data.get("stage") == "waiting":
                    break
        why = await api.json("GET", f"{first.url}/why")
        second = await api.say(await api.chat())
        await api.json("POST", f"{first.url}/cancel", 202)
        assert (await api.events(first.stream_url))[-1].name == "turn_cancelled"
        assert (await api.events(second.stream_url))[-1].name == "turn_complete"
        assert why["status"] == "running"
        assert all(not len(queue.waiting) for queue in pool._models.values())
    assert provider.accepted.total() == 2


async def test_a_call_that_would_wait_too_long_fails_with_the_wait(database_url: str) -> None:
    slow = RateLimits.per_minute(requests=1)
    provider = LimitedProvider(limits=slow, start=Amounts(1, math.inf, math.inf, math.inf))
    async with limited(database_url, provider, wait=5.0) as (server, _), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]
        said = await api.ask(await api.chat())
    error = said.assistant["error"]
    assert error["type"] == "rate_limit_error"
    assert "could start in about" in error["message"]
    assert 5 < error["details"]["retry_after"] <= 60
    assert provider.turned_away.total() == 0


async def test_owners_take_turns(database_url: str) -> None:
    provider = LimitedProvider(limits=FIVE_A_SECOND, start=Amounts(1, math.inf, math.inf, math.inf))
    async with limited(database_url, provider, auth="required") as (server, pool):
        many, few = await server.token("many"), await server.token("few")
        async with Client(server.url, token=many) as loud, Client(server.url, token=few) as quiet:
            assert await statuses(loud, 1) == ["complete"]
            flood = asyncio.create_task(statuses(loud, 12, "loud"))
            queue = next(iter(pool._models.values()))
            while len(queue.waiting) < 6:  # noqa: ASYNC110, the queue has no event
                await asyncio.sleep(0.01)
            answer = asyncio.create_task(statuses(quiet, 1, "quiet"))
            while "few" not in queue.waiting._owners and not answer.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            before = len(provider.order)
            assert [*await answer, *await flood] == ["complete"] * 13
    place = next(number for number, body in enumerate(provider.order) if '"quiet"' in body)
    assert place - before < 6
    assert provider.turned_away.total() == 0


async def test_several_keys_are_used_by_their_remaining_amounts(database_url: str) -> None:
    provider = LimitedProvider(limits=FIVE_A_SECOND, start=Amounts(20, math.inf, math.inf, math.inf))
    async with limited(database_url, provider, KEYS) as (server, _), Client(server.url) as api:
        for _ in range(4):
            await statuses(api, 1)
        assert await statuses(api, 30) == ["complete"] * 30
    assert provider.turned_away.total() == 0
    assert min(provider.accepted[key] for key in KEYS) >= 10


async def test_a_refused_key_is_set_aside_and_its_call_goes_to_another(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = LimitedProvider(refused={KEYS[0]})
    async with limited(database_url, provider, KEYS) as (server, pool), Client(server.url) as api:
        assert await statuses(api, 5) == ["complete"] * 5
        asked = [key_of(each) for each in provider.requests]
        assert pool.keys[0].refused_until > 0
    assert KEYS[0] in asked
    assert sum("key_set_aside" in record.getMessage() for record in caplog.records) <= 1
    assert provider.accepted[KEYS[1]] == 5
    assert KEYS[0] not in caplog.text


async def test_if_all_keys_are_refused_the_turn_ends_with_the_reason(database_url: str) -> None:
    provider = LimitedProvider(refused=set(KEYS))
    async with limited(database_url, provider, KEYS) as (server, _), Client(server.url) as api:
        said = await api.ask(await api.chat())
    assert said.assistant["status"] == "error"
    assert said.assistant["error"]["type"] == "authentication_error"


async def test_the_use_of_a_call_replaces_its_estimate(database_url: str) -> None:
    limits = RateLimits.per_minute(requests=6000, input_tokens=60_000, output_tokens=60_000)
    provider = LimitedProvider(limits=limits, start=limits.capacity, input=700, output=300)
    async with limited(database_url, provider) as (server, pool), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]  # the response to this call reports the limits
        assert await statuses(api, 30) == ["complete"] * 30
        queue = pool._models[MODEL]
        (account,) = queue.accounts
        await account.exchange(NONE, NONE)
        left = account.grant.left
        bucket = provider.buckets[KEYS[0]]
        assert left <= bucket.left.input / 60_000 + 0.1
        assert queue.output < 500
    assert provider.turned_away.total() == 0


async def test_a_provider_without_limits_is_called_at_once(database_url: str) -> None:
    provider = LimitedProvider()
    async with limited(database_url, provider) as (server, pool), Client(server.url) as api:
        assert await statuses(api, 3) == ["complete"] * 3
        assert pool._models[MODEL].unlimited


FILE = """
[providers.anthropic]
api = "anthropic"
keys = ["$KEY_A", "$KEY_B", "$KEY_C"]
{more}
[models.claude-haiku-5-5]
provider = "anthropic"
"""


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('key = "$KEY_A"', "`keys` of [providers.anthropic] must be left out, or `key`"),
        ("limits = { request = 5 }", "`limits.request` of [providers.anthropic] is not known"),
        ("limits = { requests = 0 }", "`limits.requests` of [providers.anthropic] must be"),
    ],
)
async def test_mistakes_in_the_file_name_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        async with open_models(settings_of(tmp_path, monkeypatch, more), [EXTENSION]):
            pass
    assert problem in str(error.value)


def settings_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> Settings:
    monkeypatch.setenv("KEY_A", "sk-a")
    monkeypatch.setenv("KEY_C", "sk-c")
    file = tmp_path / "models.toml"
    file.write_text(FILE.format(more=more), encoding="utf-8")
    return Settings(_env_file=None, models_file=file)


async def test_the_file_of_models_has_keys_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, monkeypatch, "limits = { requests = 60, input_tokens = 1000 }")
    async with open_models(settings, [EXTENSION, installed()["anthropic"]]) as models:
        pool = pool_in(models)
        assert [key.id for key in pool.keys] == [key_id("anthropic", key) for key in ("sk-a", "sk-c")]
        assert pool.stated == RateLimits.per_minute(requests=60, input_tokens=1000)
        check = await EXTENSION.checks["rate limits"](settings, models, False)
    assert check == "anthropic: 2 keys, 60 requests, 1,000 input per minute and model"


async def test_keys_without_the_extension_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, monkeypatch, "")
    others = [each for name, each in installed().items() if name != "rate_limits"]
    with pytest.raises(ConfigError, match=r"`keys` of \[providers.anthropic\] needs the extension rate_limits"):
        async with open_models(settings, others):
            pass


def pool_in(models: Models) -> KeyPool:
    pool = next(entry.provider for entry in models.providers if entry.provider.name == "anthropic")
    assert isinstance(pool, KeyPool)
    return pool

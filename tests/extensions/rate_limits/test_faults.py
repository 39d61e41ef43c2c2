"""Rate limits under faults: the provider refuses calls, Postgres cannot be reached, or servers are killed."""

import asyncio
import math
from pathlib import Path

import pytest

from tests.acceptance.conftest import StartServer, server
from tests.extensions.rate_limits.limited_provider import MODEL, LimitedProvider
from tests.extensions.rate_limits.test_rate_limits import FIVE_A_SECOND, KEYS, limited, replica, statuses
from tests.integration.proxy import proxied
from tests.support.canned import served
from tests.support.http_client import Client
from turnstream.extensions.rate_limits.amounts import Amounts, RateLimits

__all__ = ["server"]

ONE = Amounts(1, math.inf, math.inf, math.inf)
SLOW = RateLimits.per_minute(requests=30)
MODELS = """
[providers.limited]
api = "anthropic"
key = "{key}"
base_url = "{url}"

[models."{model}"]
provider = "limited"
"""
FALLBACKS = """
[providers.limited]
api = "anthropic"
keys = ["{key}"]
base_url = "{url}"

[providers.other]
api = "anthropic"
key = "sk-other"
base_url = "{url}"

[models."{model}"]
provider = "limited"
fallbacks = ["other/second"]

[models."other/second"]
provider = "other"
"""


async def test_a_key_that_others_have_used_up_is_left_alone_by_all_replicas(database_url: str) -> None:
    """Another program uses the same key, so the provider refuses a call although the replica's share was sufficient."""
    provider = LimitedProvider(limits=FIVE_A_SECOND, start=FIVE_A_SECOND.capacity)
    async with (
        limited(database_url, provider, max_retries=3) as (first, _),
        replica(database_url, provider, max_retries=3) as (second, _),
        Client(first.url) as one,
        Client(second.url) as two,
    ):
        assert await statuses(one, 1) == ["complete"]
        provider.used_up = True
        retried = await one.ask(await one.chat())
        assert retried.assistant["status"] == "complete"
        assert await statuses(two, 4) == ["complete"] * 4
    assert provider.turned_away.total() == 1


async def test_calls_wait_while_postgres_is_away(database_url: str) -> None:
    provider = LimitedProvider(limits=SLOW, start=ONE)
    async with (
        proxied(database_url) as (url, proxy),
        limited(url, provider, postgres_timeout=0.5) as (server, _),
        Client(server.url) as api,
    ):
        assert await statuses(api, 1) == ["complete"]
        turn = await api.say(await api.chat())
        async with api.follow(turn.stream_url) as events:
            names = []
            async for event in events:
                names.append(event.name)
                if event.data.get("stage") == "waiting":
                    proxy.swallow()
                    await asyncio.sleep(3.0)  # without the fault, the replica would have a share after 2 s
                    assert provider.accepted.total() == 1
                    proxy.heal()
    assert names[-1] == "turn_complete"
    assert (provider.accepted.total(), provider.turned_away.total()) == (2, 0)


async def test_a_call_that_would_wait_too_long_goes_to_the_fallback(server: StartServer, tmp_path: Path) -> None:
    provider = LimitedProvider(limits=RateLimits.per_minute(requests=1), start=ONE)
    async with served(provider):
        file = tmp_path / "models.toml"
        file.write_text(FALLBACKS.format(key=KEYS[0], url=provider.url, model=MODEL))
        replica = await server(
            TURNSTREAM_MODELS_FILE=str(file),
            TURNSTREAM_MODEL=MODEL,
            TURNSTREAM_MAX_RETRIES="0",
            TURNSTREAM_RATE_LIMIT_WAIT="5",
        )
        async with Client(replica.url) as api:
            assert await statuses(api, 1) == ["complete"]
            turn = await api.ask(await api.chat())
    assert turn.assistant["status"] == "complete"
    assert [each["what"] for each in turn.assistant["degraded"]] == ["fallback_model"]
    assert turn.assistant["rounds"][-1]["model"] == "other/second"
    assert provider.accepted == {KEYS[0]: 1, "sk-other": 1}
    assert provider.turned_away.total() == 0


@pytest.mark.timeout(180)
@pytest.mark.full
async def test_the_share_of_a_killed_server_comes_back(server: StartServer, tmp_path: Path) -> None:
    """Another replica takes over the turns. The dead server still held a share, but the provider refuses no call."""
    provider = LimitedProvider(limits=FIVE_A_SECOND, start=Amounts(10, math.inf, math.inf, math.inf))
    async with served(provider):
        file = tmp_path / "models.toml"
        file.write_text(MODELS.format(key=KEYS[0], url=provider.url, model=MODEL))
        settings = {"TURNSTREAM_MODELS_FILE": str(file), "TURNSTREAM_MODEL": MODEL, "TURNSTREAM_MAX_RETRIES": "0"}
        first, second = await server(**settings), await server(**settings)
        async with Client(first.url) as one, Client(second.url) as two:
            assert await statuses(one, 1) == ["complete"]
            turns = [await one.say(await one.chat()) for _ in range(30)]
            while provider.accepted.total() < 10:  # noqa: ASYNC110, the provider has no event
                await asyncio.sleep(0.01)
            await first.kill()
            ended = [(await two.events(turn.stream_url))[-1].name for turn in turns]
    assert ended == ["turn_complete"] * 30
    assert provider.turned_away.total() == 0


async def test_tokens_may_be_the_limit_that_binds(database_url: str) -> None:
    """Each call uses 300 of 60,000 tokens a minute, so about three calls can start per second. The limit of requests is
    not reached.
    """
    limits = RateLimits.per_minute(requests=6000, output_tokens=60_000)
    start = Amounts(100, math.inf, 1200, math.inf)
    provider = LimitedProvider(limits=limits, start=start, output=300)
    async with limited(database_url, provider) as (server, pool), Client(server.url) as api:
        assert await statuses(api, 1) == ["complete"]
        assert await statuses(api, 9) == ["complete"] * 9
        assert pool._models[MODEL].accounts[0].limits.capacity.output == 60_000
    assert provider.turned_away.total() == 0

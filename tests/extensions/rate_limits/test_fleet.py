"""Eight replicas share one database and one key. The provider enforces the limits of the key."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import pytest

from tests.extensions.rate_limits.limited_provider import MODEL, LimitedProvider
from tests.extensions.rate_limits.test_rate_limits import replica
from tests.support.canned import served
from tests.support.http_client import Client
from turnstream.extensions.rate_limits.allocation import LEASE, ShareRequest, from_row, to_row
from turnstream.extensions.rate_limits.amounts import Amounts, RateLimits, need_of
from turnstream.extensions.rate_limits.store import SET_RATE, PostgresStore
from turnstream.storage.database import Statement, connect
from turnstream.storage.rows import from_json, to_json

RATES = Statement("SELECT key, state FROM provider_rates")
AGE = Statement("UPDATE provider_rates SET updated_at = now() - interval '2 days' WHERE key = 'old' RETURNING key")
LIMITS = RateLimits.per_minute(requests=600, input_tokens=60_000, output_tokens=60_000)
REPLICAS = 8
CALLERS = 8  # each owner makes this many calls at the same time


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_eight_replicas_use_the_rate_of_a_key_and_are_not_refused(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    """Five owners together request much more than the rate allows, and one owner sends a call now and then."""
    start = Amounts(10, 60_000, 60_000, math.inf)
    provider = LimitedProvider(limits=LIMITS, start=start, input=60, output=20)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(served(provider))
        servers = [
            await stack.enter_async_context(replica(database_url, provider, auth="required")) for _ in range(REPLICAS)
        ]
        owners = [f"owner-{number}" for number in range(6)]
        clients = {
            owner: [
                await stack.enter_async_context(Client(server.url, token=await server.token(owner)))
                for server, _ in servers[:2]
            ]
            for owner in owners
        }
        for client in (each for several in clients.values() for each in several):
            # otherwise, the server would close the idle connection of a client whose other calls wait
            client.headers["Connection"] = "close"
        warm = clients[owners[0]][0]
        for _ in range(3):
            await warm.ask(await warm.chat())

        async def ask(owner: str, number: int) -> str:
            api = clients[owner][number % 2]
            said = await api.ask(await api.chat(), owner)
            status: str = said.assistant["status"]
            return status

        async with asyncio.TaskGroup() as group:
            busy = [
                group.create_task(one_by_one(partial(ask, owner), 4)) for _ in range(CALLERS) for owner in owners[:5]
            ]
            rare = group.create_task(one_by_one(lambda number: ask(owners[5], number), 6))
        statuses = [status for each in [*busy, rare] for status in each.result()]
    assert statuses == ["complete"] * len(statuses)
    refused = provider.turned_away.total() / provider.accepted.total()
    used = provider.used(0.4, 0.9)  # in this period, calls of all owners wait
    record_property("rate limits: part of the rate used by eight replicas", round(used, 4))
    record_property("rate limits: part of calls refused", round(refused, 4))
    assert refused < 0.005
    replicas = [pool for _, pool in servers]
    assert sum(pool._models.get(MODEL) is not None for pool in replicas) > 1


async def one_by_one(ask: Callable[[int], Awaitable[str]], count: int) -> list[str]:
    return [await ask(number) for number in range(count)]


async def test_rows_hold_the_shares_and_a_killed_replica_leaves_its_own(database_url: str) -> None:
    """The rows use the clock of Postgres, so the test changes the end of the dead replica's lease."""
    async with connect(database_url, size=2) as database:
        store = PostgresStore(database)

        def wish(name: str, calls: int) -> ShareRequest:
            need = need_of(10, 10)
            return ShareRequest(name, LIMITS, need=need, wanted=Amounts(*(each * calls for each in need)))

        dead = await store.exchange("k", wish("dead", 10))
        assert dead.held.requests == 10
        assert (await store.limits(["k", "unknown"])) == {"k": LIMITS}
        await store.exchange("k", ShareRequest("a", LIMITS))
        (row,) = await database.rows(RATES)
        before = from_row(from_json(row["state"]))
        assert 589 < before.left.requests <= 590
        share = before.shares["dead"]
        gone = replace(before, shares={"dead": replace(share, until=share.until - LEASE)})
        await database.row(SET_RATE, key="k", state=to_json(to_row(gone)))
        await store.exchange("k", ShareRequest("a", LIMITS))
        (row,) = await database.rows(RATES)
        after = from_row(from_json(row["state"]))
        assert (after.left.requests, after.shares) == (600, {})


async def test_exchanges_at_once_never_grant_more_than_there_is(database_url: str) -> None:
    few = RateLimits.per_minute(requests=60)
    async with connect(database_url, size=8) as database:
        store, need = PostgresStore(database), Amounts(1)
        await store.exchange("k", ShareRequest("other", few, spent=Amounts(50)))
        grants = await asyncio.gather(
            *(store.exchange("k", ShareRequest(f"r{number}", few, need=need, wanted=need)) for number in range(40))
        )
        (row,) = await database.rows(RATES)
    state = from_row(from_json(row["state"]))
    held = sum(share.held.requests for share in state.shares.values())
    assert held == pytest.approx(sum(grant.held.requests for grant in grants))
    assert state.left.requests >= 0
    assert held + state.left.requests <= 60


async def test_rows_of_keys_that_are_gone_are_swept(database_url: str) -> None:
    async with connect(database_url, size=2) as database:
        store = PostgresStore(database)
        for key in ("old", "new"):
            await store.exchange(key, ShareRequest("a", LIMITS))
        await database.row(
            Statement(
                "UPDATE provider_rates SET updated_at = now() - interval '2 days' WHERE key = 'old' RETURNING key"
            )
        )
        assert [removed async for removed in store.sweep()] == [1]
        assert [row["key"] for row in await database.rows(RATES)] == ["new"]


async def test_another_replica_knows_the_limits_before_its_first_call(database_url: str) -> None:
    provider = LimitedProvider(limits=LIMITS, start=LIMITS.capacity)
    async with served(provider), replica(database_url, provider) as (server, pool), Client(server.url) as api:
        await api.ask(await api.chat())
        await pool.flush()
        async with replica(database_url, provider) as (_, other):
            model = other._model(MODEL)
            assert not model.accounts[0].limits.limited
            await model.load(other.store)
            assert model.accounts[0].limits == pool._model(MODEL).accounts[0].limits

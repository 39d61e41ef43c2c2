"""Postgres works, but the network to it does not: one replica is cut off, or the address leads to a standby."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.fifty_turns import LEASE, TURNS, Site, end_all, fifty_turns, finish, refusal
from tests.faults.postgres import own_pair, own_postgres
from tests.integration.proxy import Proxy, proxied
from tests.support.http_client import Client, said, turn_url
from tests.support.load import slowdown

pytestmark = pytest.mark.timeout(300)


async def test_an_address_that_leads_to_a_standby_before_its_promotion_ends_no_replica(tmp_path: Path) -> None:
    async with (
        own_pair(tmp_path) as pair,
        proxied(pair.primary.url) as (address, way),
        fifty_turns(pair.url, tmp_path, DATABASE_URL=address) as site,
    ):
        way.target = pair.standby.url
        os.kill(pair.primary.pid, signal.SIGQUIT)
        site.go_on()
        for replica in site.replicas:
            async with Client(replica.url) as client:
                for _ in range(5):  # the refusal stays the same after the replica has connected to the standby
                    await refusal(client, "POST", "/api/turns", json=said("Is anybody there?"))
        await pair.promote()
        await finish(site)


async def test_connections_that_end_in_a_hole_are_replaced_before_the_lease_expires(tmp_path: Path) -> None:
    """The machine at the other end of the connections has vanished without closing them."""
    seconds = LEASE * slowdown() / 2  # half of a lease, as by default
    async with (
        own_postgres(tmp_path) as postgres,
        _one_behind_a_proxy(postgres.url, tmp_path, TURNSTREAM_POSTGRES_TIMEOUT=str(seconds)) as (site, way),
    ):
        way.forget()
        await finish(site)


async def test_a_replica_that_is_cut_off_for_longer_than_its_lease_is_fenced_and_serves_again(tmp_path: Path) -> None:
    async with (
        own_postgres(tmp_path) as postgres,
        _one_behind_a_proxy(postgres.url, tmp_path, TURNSTREAM_RECOVERY="retry") as (site, way),
    ):
        cut_off, other = site.replicas
        before = await site.watch.owners()
        way.swallow()
        site.go_on()  # no replica knows yet that these turns have another owner
        while cut_off.port in (await site.watch.owners()).values():  # noqa: ASYNC110, there is no event for this
            await asyncio.sleep(0.05)
        way.heal()
        while len(await site.watch.leases()) < 2:  # noqa: ASYNC110, likewise
            await asyncio.sleep(0.05)
        await end_all(site)
        await _check_that_only_moved_turns_were_run_again(site, {id for id, at in before.items() if at == cut_off.port})
        assert "claim.lost" in cut_off.logs
        assert "claim.lost" not in other.logs


@asynccontextmanager
async def _one_behind_a_proxy(url: str, folder: Path, **more: str) -> AsyncIterator[tuple[Site, Proxy]]:
    async with (
        proxied(url) as (address, way),
        fifty_turns(url, folder, ({"DATABASE_URL": address}, {}), **more) as site,
    ):
        yield site, way


async def _check_that_only_moved_turns_were_run_again(site: Site, moved: Set[str]) -> None:
    async with Client(site.replicas[0].url) as client:
        stored = {turn["id"]: await client.json("GET", turn_url(turn)) for turn in site.turns}
    for reader in site.readers:
        turn = stored[reader.turn.start["turn"]]
        assert (turn["status"], reader.text()) == ("complete", "I act: so. It is done.")
        reader.check_whole(turn)
    assert set(site.model.effects.values()) == {1}
    assert len(site.model.effects) == TURNS
    attempts = await site.watch.attempts()
    assert {str(turn) for turn, attempt in attempts.items() if attempt > site.attempts[turn]} == moved

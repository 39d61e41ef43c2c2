"""Postgres stops in the middle of fifty running turns, and starts again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.faults.fifty_turns import TURNS, fifty_turns, finish, refusal, until_all
from tests.faults.postgres import own_postgres
from tests.support.http_client import Client, said

pytestmark = pytest.mark.timeout(300)

# Postgres is away for at least twice the lease. FAULTS_SECONDS_AWAY sets a longer time.
AWAY = float(os.environ.get("FAULTS_SECONDS_AWAY", "0"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_a_restart_of_postgres_loses_nothing_and_repeats_nothing(tmp_path: Path, how: signal.Signals) -> None:
    async with own_postgres(tmp_path) as postgres, fifty_turns(postgres.url, tmp_path) as site:
        await postgres.stop(how)
        site.go_on()
        await postgres.start()
        await finish(site)


async def test_while_postgres_is_away_live_text_flows_block_ends_wait_and_requests_are_refused(tmp_path: Path) -> None:
    async with own_postgres(tmp_path) as postgres, fifty_turns(postgres.url, tmp_path) as site:
        await postgres.stop()
        gone = asyncio.get_running_loop().time()
        talking = site.of("text", site.near)
        site.model.open("before the call")
        await until_all(talking, lambda reader: reader.text() == "I act: so. ")
        site.model.open("end of text")
        site.model.open("effect")
        for replica in site.replicas:
            async with Client(replica.url) as client:
                await refusal(client, "GET", "/readyz")
                refused = await refusal(client, "POST", "/api/turns", json=said("Is anybody there?"))
                assert refused.headers["retry-after"].isdecimal()
                assert (await client.get("/healthz")).status_code == 200
        await asyncio.sleep(max(AWAY, 2 * site.lease) - (asyncio.get_running_loop().time() - gone))
        for reader in talking:
            assert "block_stop" not in reader.seen
        assert len(site.model.effects) == TURNS // 2, "a tool ran before its call was on record"

        await postgres.start()
        await finish(site)

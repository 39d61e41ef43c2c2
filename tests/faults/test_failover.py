"""Postgres fails over: the primary dies, its standby is promoted, and DATABASE_URL names both."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.faults.fifty_turns import TURNS, fifty_turns, finish, until_all
from tests.faults.postgres import Postgres, own_pair, own_postgres
from tests.support.http_client import Client, said, turn_url
from tests.support.reading import Reader
from tests.support.server_process import Server

pytestmark = pytest.mark.timeout(300)


async def test_a_promoted_standby_continues_every_turn(tmp_path: Path) -> None:
    async with own_pair(tmp_path) as pair, fifty_turns(pair.url, tmp_path) as site:
        os.kill(pair.primary.pid, signal.SIGQUIT)
        await pair.promote()
        await finish(site)


async def test_after_a_failover_that_lost_commits_every_turn_is_whole_or_gone(tmp_path: Path) -> None:
    """All commits since `cut_off` are lost: blocks, seals, calls, results, the ends of ten turns, and a whole turn."""
    async with (
        own_pair(tmp_path) as pair,
        fifty_turns(pair.url, tmp_path) as site,
        Client(site.replicas[0].url) as client,
    ):
        await pair.cut_off()
        site.model.open("before the call")
        site.model.open("end of text")
        await site.model.until_reached("effect", TURNS)
        over = {reader.name for reader in site.near[:10]}
        site.model.open("effect", over)
        site.model.open("before the end", over)
        ended = [reader for reader in site.readers if reader.name in over]
        await until_all(ended, lambda reader: reader.turn.end is not None)
        posted = await client.json("POST", "/api/turns", 201, json=said("text lost"))
        lost = Reader(client, posted["stream_url"])
        following = asyncio.create_task(lost.follow())
        await lost.until(lambda reader: reader.text().startswith("I act: "))
        os.kill(pair.primary.pid, signal.SIGQUIT)
        await pair.promote()
        site.go_on()
        site.model.open("before the end")

        await following
        assert lost.turn.end == "turn_cancelled"
        assert (await client.get(posted["stream_url"])).status_code == 404
        await until_all(site.readers, lambda reader: reader.turn.end is not None)
        for reader in ended:  # the readers reconnect, like a reopened page
            reader.turn.end = None
        await asyncio.gather(*(reader.follow() for reader in ended))
        stored = {turn["id"]: await client.json("GET", turn_url(turn)) for turn in site.turns}
        for reader in site.readers:
            turn = stored[reader.turn.start["turn"]]
            assert (turn["status"], reader.text()) == ("complete", "I act: so. It is done.")
            reader.check_whole(turn)
            assert ("reset" in reader.seen) <= (reader.name in over)
    # A turn that had ended runs again. Its call also runs again if the commit of the call's start is lost.
    assert {site.model.effects[reader.name] for reader in site.near if reader.name not in over} == {1}
    assert {site.model.effects[name] for name in over if name.startswith("tool")} == {1}
    assert {site.model.effects[name] for name in over if name.startswith("text")} <= {1, 2}


async def _until_commits_wait(postgres: Postgres) -> None:
    """Waits until commits wait for the standby. A process of Postgres applies the setting for all sessions only some
    time after it was told to reload.
    """
    async with postgres.connected() as one, postgres.connected() as other:
        committing: set[asyncio.Task[str]] = set()
        while not await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            if all(task.done() for task in committing):
                committing.add(asyncio.create_task(one.execute("SELECT pg_logical_emit_message(true, 'test', '')")))
        for task in committing:
            task.cancel()
        await asyncio.gather(*committing, return_exceptions=True)


async def test_a_request_is_not_acknowledged_while_its_commit_waits_for_a_standby(tmp_path: Path) -> None:
    """When the wait is cancelled, Postgres keeps the commit on the primary, where a repeated request finds it."""
    async with own_postgres(tmp_path) as postgres:
        server = Server(postgres.url, tmp_path, {"TURNSTREAM_POSTGRES_TIMEOUT": "1"})
        await server.start()
        try:
            async with Client(server.url) as client, postgres.connected() as operator:
                await client.json("POST", "/api/turns", 201, json=said("text"))
                await operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
                await operator.execute("SELECT pg_reload_conf()")
                await _until_commits_wait(postgres)
                key = {"Idempotency-Key": "once"}
                for _ in range(3):
                    refused = await client.post("/api/turns", json=said("text once"), headers=key)
                    assert refused.status_code == 503
                assert await operator.fetchval("SELECT count(*) FROM idempotency_keys") == 1, "it is there all the same"
                await operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
                await operator.execute("SELECT pg_reload_conf()")
                while (
                    posted := await client.post("/api/turns", json=said("text once"), headers=key)
                ).status_code == 503:
                    pass
                assert posted.status_code == 201
                assert await operator.fetchval("SELECT count(*) FROM chats") == 2
        finally:
            await server.close()

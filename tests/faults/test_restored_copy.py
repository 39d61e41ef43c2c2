"""A dump that was made in the middle of fifty turns is restored on another Postgres."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.faults.fifty_turns import TURNS, fifty_turns, until_all
from tests.faults.postgres import own_postgres
from tests.support.http_client import Client, turn_url
from turnstream.extensions.embedded import cluster

pytestmark = pytest.mark.timeout(300)


async def test_servers_on_the_copy_end_every_turn_and_repeat_no_effect(tmp_path: Path) -> None:
    dump = tmp_path / "chats.dump"
    async with own_postgres(tmp_path) as postgres, fifty_turns(postgres.url, tmp_path) as site:
        await _run("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={postgres.url}")
        async with postgres.connected() as connection:
            await connection.execute("CREATE DATABASE copy")
        copy = urlsplit(postgres.url)._replace(path="/copy").geturl()
        await _run("pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", f"--dbname={copy}", str(dump))
        for replica in site.replicas:
            await replica.kill()
        for replica in site.replicas:
            await replica.start(DATABASE_URL=copy)
        site.go_on()
        site.model.open("before the end")
        await until_all(site.readers, lambda reader: reader.turn.end is not None)

        async with Client(site.replicas[0].url) as client:
            stored = {turn["id"]: await client.json("GET", turn_url(turn)) for turn in site.turns}
        for reader in site.readers:
            turn = stored[reader.turn.start["turn"]]
            assert (turn["status"], reader.text()) == ("complete", "I act: so. It is done.")
            reader.check_whole(turn)
        assert set(site.model.effects.values()) == {1}
        assert len(site.model.effects) == TURNS


async def _run(program: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        cluster.program(program), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()

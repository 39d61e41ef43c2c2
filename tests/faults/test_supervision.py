"""What belongs to a server, and what does not: the turns of another server, and the Postgres of its own."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.faults.model import Call, Gate, Step, model_api
from tests.faults.replicas import replica_with
from tests.faults.watch import Watch
from tests.support.http_client import Client, said, turn_url
from tests.support.reading import Reader

pytestmark = pytest.mark.timeout(240)

TURNS = 10


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), "last.")


async def test_a_second_server_with_the_host_name_and_port_of_a_living_one_takes_no_turn(
    database_url: str, tmp_path: Path
) -> None:
    async with model_api(held) as model:
        first = replica_with(database_url, tmp_path, model, {"TURNSTREAM_LEASE": "5"})
        namesake = {"TURNSTREAM_HOST": "::1", "TURNSTREAM_PORT": str(first.port), "TURNSTREAM_LEASE": "5"}
        second = replica_with(database_url, tmp_path, model, namesake)
        second.url = f"http://[::1]:{first.port}"
        try:
            await first.start()
            watch = Watch(database_url)
            await watch.begin()
            async with Client(first.url) as client:
                posted = [await client.json("POST", "/api/turns", 201, json=said("Go")) for _ in range(TURNS)]
                readers = [Reader(client, f"{turn_url(each['assistant_turn'])}/stream") for each in posted]
                async with asyncio.TaskGroup() as group:
                    for reader in readers:
                        group.create_task(reader.follow())
                        await reader.until(lambda reader: reader.text() == "first ")
                    before = await watch.attempts()
                    for _ in range(3):
                        await second.start()
                        await second.kill()
                    await second.start()
                    while "replica.address_shared" not in first.logs or "replica.address_shared" not in second.logs:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    model.open("held")
                assert {reader.turn.end for reader in readers} == {"turn_complete"}
            assert len(before) == TURNS
            assert await watch.attempts() == before
            assert len(model.calls) == TURNS
            assert await second.terminate() == 0
        finally:
            await first.close()
            await second.close()


async def test_a_server_that_is_killed_and_started_again_has_its_turns_at_once(
    database_url: str, tmp_path: Path
) -> None:
    """Its lease has an hour left; its session is gone."""
    async with model_api(held) as model:
        server = replica_with(database_url, tmp_path, model, {"TURNSTREAM_LEASE": "3600"})
        try:
            await server.start()
            async with Client(server.url) as client:
                posted = await client.json("POST", "/api/turns", 201, json=said("Go"))
                await model.until_reached("held", 1)
                await server.kill()
                await server.start()
                model.open("held")
                reader = Reader(client, f"{turn_url(posted['assistant_turn'])}/stream")
                await reader.follow()
                assert reader.turn.end == "turn_complete"
        finally:
            await server.close()


async def test_an_embedded_postgres_that_is_killed_is_started_again_under_its_turns(tmp_path: Path) -> None:
    async with model_api(held) as model:
        # Without DATABASE_URL it has a Postgres of its own.
        server = replica_with("", tmp_path, model, {"TURNSTREAM_DATA_DIR": str(tmp_path / "data")})
        try:
            await server.start()
            async with Client(server.url) as client:
                posted = [await client.json("POST", "/api/turns", 201, json=said("Go")) for _ in range(TURNS)]
                readers = [Reader(client, f"{turn_url(each['assistant_turn'])}/stream") for each in posted]
                async with asyncio.TaskGroup() as group:
                    for reader in readers:
                        group.create_task(reader.follow())
                        await reader.until(lambda reader: reader.text() == "first ")
                    turns = [await client.json("GET", turn_url(each["assistant_turn"])) for each in posted]
                    attempts = {turn["id"]: turn["attempt"] for turn in turns}
                    _postmaster(tmp_path).kill()
                    while (await client.get("/readyz")).status_code != 503:  # noqa: ASYNC110, a kill has no event here
                        await asyncio.sleep(0.01)
                    model.open("held")
                while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                for reader, each in zip(readers, posted, strict=True):
                    turn = await client.json("GET", turn_url(each["assistant_turn"]))
                    assert (turn["status"], turn["attempt"]) == ("complete", attempts[turn["id"]])
                    reader.check_whole(turn)
            assert await server.terminate() == 0
            assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()
        finally:
            await server.close()


def _postmaster(folder: Path) -> psutil.Process:
    return psutil.Process(int((folder / "data" / "postgres" / "postmaster.pid").read_text().split()[0]))

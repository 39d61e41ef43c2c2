"""Two replicas behind HAProxy and Caddy, with the files of docs/deploy. test_nginx.py tests in more detail what all
proxies have in common.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.model import Call, Gate, Model, Step, model_api
from tests.faults.proxy import caddy, haproxy
from tests.faults.replicas import Replica, two_replicas
from tests.support.http_client import Client, Parser, said, turn_url
from tests.support.reading import Reader
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240), pytest.mark.needs("HAProxy", "Caddy")]

MANY = 6


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), *(f"{number} " for number in range(20)))


@dataclass(frozen=True)
class Site:
    model: Model
    replicas: tuple[Replica, Replica]
    client: Client
    words: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    shared_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Model, tuple[Replica, Replica], str]]:
    async with connect(shared_database_url, size=1) as database:
        token = await Tokens(database).create("proxies", Identity("ada"))
    folder = tmp_path_factory.mktemp("replicas")
    async with model_api(held) as model, two_replicas(shared_database_url, folder, model) as replicas:
        yield model, replicas, token


@pytest_asyncio.fixture(loop_scope="module", params=[haproxy, caddy], ids=["HAProxy", "Caddy"])
async def it(
    running: tuple[Model, tuple[Replica, Replica], str], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    model, replicas, token = running
    addresses = [replica.address for replica in replicas]
    async with request.param(tmp_path, addresses) as url, Client(url, token=token) as client:
        yield Site(model, replicas, client, request.node.name)


async def test_a_stream_is_not_buffered(it: Site) -> None:
    parser, text = Parser(), ""
    accept = {"Accept": "text/event-stream"}
    async with it.client.stream("POST", "/api/turns", json=said(it.words), headers=accept) as response:
        async for chunk in response.aiter_bytes():
            text += "".join(e.data["text"] for e in parser.feed(chunk) if e.name == "block_delta")
            if text == "first ":
                it.model.open("held", [it.words])
    assert text.startswith("first 0 1 2")


async def test_readers_survive_the_replica_that_they_read_from(it: Site) -> None:
    new = [await it.client.json("POST", "/api/turns", 201, json=said(it.words)) for _ in range(MANY)]
    readers = [Reader(it.client, turn["stream_url"]) for turn in new]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
        for reader in readers:
            await reader.until(lambda reader: reader.text() == "first ")
        await it.replicas[0].kill()
        it.model.open("held", [it.words])
    for reader, turn in zip(readers, new, strict=True):
        reader.check_whole(await it.client.json("GET", turn_url(turn["assistant_turn"])))
        assert reader.turn.end == "turn_complete"
    for _ in range(MANY):  # requests to the dead replica are sent to the other replica
        assert (await it.client.get("/api/models")).status_code == 200
    await it.replicas[0].start()


async def test_metrics_and_readiness_are_for_those_inside_only(it: Site) -> None:
    for path, status in {"/metrics": 404, "/readyz": 404, "/healthz": 200}.items():
        assert (await it.client.get(path)).status_code == status

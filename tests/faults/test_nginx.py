"""Two replicas behind nginx, with docs/deploy/nginx.conf."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from tests.faults.model import Call, Gate, Model, Step, model_api
from tests.faults.proxy import Proxy, nginx
from tests.faults.replicas import Replica, two_replicas
from tests.support.certificates import Authority
from tests.support.http_client import Client, Parser, Said, said
from tests.support.reading import Reader
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240), pytest.mark.needs("nginx")]

MANY = 12


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), *(f"{number} " for number in range(20)))


@dataclass(frozen=True)
class Site:
    """The replicas of one test behind nginx. `words` are the messages of its turns, by which the model finds its
    gates.
    """

    model: Model
    replicas: tuple[Replica, Replica]
    proxy: Proxy
    client: Client
    token: str
    words: str

    async def begin(self) -> Said:
        """Begins a turn in a new chat with one request, so that the replicas alternate."""
        answer = await self.client.json("POST", "/api/turns", 201, json=said(self.words))
        return Said(answer["user_turn"], answer["assistant_turn"], answer["stream_url"])

    def go_on(self) -> None:
        self.model.open("held", [self.words])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    shared_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Model, tuple[Replica, Replica], str]]:
    async with connect(shared_database_url, size=1) as database:
        token = await Tokens(database).create("test", Identity("ada"))  # proxied requests need a token
    folder = tmp_path_factory.mktemp("replicas")
    async with (
        model_api(held) as model,
        two_replicas(shared_database_url, folder, model, TURNSTREAM_HEARTBEAT="0.25") as replicas,
    ):
        yield model, replicas, token


@pytest_asyncio.fixture(loop_scope="module")
async def it(
    running: tuple[Model, tuple[Replica, Replica], str], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    model, replicas, token = running
    async with (
        nginx(tmp_path, [replica.address for replica in replicas]) as proxy,
        Client(proxy.url, token=token) as client,
    ):
        yield Site(model, replicas, proxy, client, token, request.node.name)


async def test_the_first_delta_arrives_while_the_model_still_streams(it: Site) -> None:
    new = [await it.begin() for _ in range(MANY)]
    readers = [Reader(it.client, turn.stream_url) for turn in new]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
        for reader in readers:
            await reader.until(lambda reader: reader.text() == "first ")
        assert it.model.reached["held", it.words] == MANY
        it.go_on()
    for reader, turn in zip(readers, new, strict=True):
        reader.check_whole(await it.client.json("GET", turn.url))
        assert reader.connections == 1
    streams = [line.upstreams for line in it.proxy.asked("/stream")]
    assert set(streams) == {(replica.address,) for replica in it.replicas}


async def test_the_answer_to_a_post_that_asks_for_a_stream_is_not_buffered_either(it: Site) -> None:
    parser, text = Parser(), ""
    accept = {"Accept": "text/event-stream"}
    async with it.client.stream("POST", "/api/turns", json=said(it.words), headers=accept) as response:
        async for chunk in response.aiter_bytes():
            text += "".join(e.data["text"] for e in parser.feed(chunk) if e.name == "block_delta")
            if text == "first ":
                assert it.model.reached["held", it.words] == 1
                it.go_on()
    assert text.startswith("first 0 1 2")


async def test_heartbeats_carry_a_silent_stream_through_the_idle_timeout(it: Site, tmp_path: Path) -> None:
    addresses = [replica.address for replica in it.replicas]
    async with nginx(tmp_path, addresses, read_timeout=2) as proxy, Client(proxy.url, token=it.token) as client:
        turn = await it.begin()
        reader = Reader(client, turn.stream_url)
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.follow())
            await reader.until(lambda reader: reader.heartbeats >= 16)  # twice the timeout
            it.go_on()
        reader.check_whole(await it.client.json("GET", turn.url))
        assert reader.connections == 1


async def test_a_stream_without_heartbeats_is_cut_by_the_same_timeout(it: Site, tmp_path: Path) -> None:
    address = it.model.url.removeprefix("http://")
    ask = {"messages": [{"role": "user", "content": it.words}]}
    async with (
        nginx(tmp_path, [address, address], read_timeout=1) as proxy,
        Client(proxy.url, token=it.token) as client,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post("/v1/messages", json=ask)
    assert it.model.reached["held", it.words] == 1
    it.go_on()


async def test_a_reader_that_moves_between_replicas_with_its_cursor_misses_nothing(it: Site) -> None:
    turn = await it.begin()
    readers = [Reader(it.client, turn.stream_url, cut_after=1) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
        for reader in readers:
            await reader.until(lambda reader: reader.text() == "first ")
        it.go_on()
    for reader in readers:
        reader.check_whole(await it.client.json("GET", turn.url))
        assert reader.connections > 4
    streams = {line.upstreams for line in it.proxy.asked("/stream")}
    assert streams >= {(replica.address,) for replica in it.replicas}


async def test_a_get_that_meets_a_dead_replica_is_answered_by_the_other(it: Site) -> None:
    gone, left = it.replicas
    await gone.kill()
    for _ in range(MANY):
        assert (await it.client.get("/api/models")).status_code == 200
    retried = [line for line in it.proxy.asked("/api/models") if len(line.upstreams) == 2]
    assert retried
    assert {(line.upstreams, line.upstream_statuses) for line in retried} == {
        ((gone.address, left.address), ("502", "200"))
    }
    await gone.start()


async def test_readers_survive_the_replica_that_they_read_from(it: Site) -> None:
    new = [await it.begin() for _ in range(MANY)]
    readers = [Reader(it.client, turn.stream_url) for turn in new]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
        for reader in readers:
            await reader.until(lambda reader: reader.text() == "first ")
        await it.replicas[0].kill()
        it.go_on()
    for reader, turn in zip(readers, new, strict=True):
        reader.check_whole(await it.client.json("GET", turn.url))
        assert reader.turn.end == "turn_complete"
    await it.replicas[0].start()


async def test_metrics_and_readiness_are_for_those_inside_only(it: Site) -> None:
    for path, status in {"/metrics": 404, "/readyz": 404, "/healthz": 200}.items():
        assert (await it.client.get(path)).status_code == status


@pytest.mark.needs("curl")
async def test_with_tls_and_http_2_streams_are_not_buffered_and_addresses_have_limits(
    running: tuple[Model, tuple[Replica, Replica], str], tmp_path: Path
) -> None:
    model, replicas, token = running
    authority = Authority(tmp_path)
    addresses, certificate = [replica.address for replica in replicas], authority.issue("127.0.0.1")
    async with nginx(tmp_path, addresses, certificate=certificate) as proxy:
        common = ("--silent", "--cacert", str(authority.certificate), "--oauth2-bearer", token)
        watching = await asyncio.create_subprocess_exec(
            *("curl", "--http2", "--no-buffer", "--write-out", "HTTP/%{http_version}", *common),
            *("--header", "Accept: text/event-stream", "--json", json.dumps(said("by TLS"))),
            f"{proxy.url}/api/turns",
            stdout=asyncio.subprocess.PIPE,
        )
        assert watching.stdout is not None
        while b"first " not in (line := await watching.stdout.readline()):
            assert line, "the stream ended before the model went on"
        model.open("held", ["by TLS"])
        rest, _ = await watching.communicate()
        assert b"event: turn_complete" in rest
        assert rest.endswith(b"HTTP/2")
        flood = await asyncio.create_subprocess_exec(
            *("curl", "--parallel", "--parallel-max", "50", "--output", "/dev/null", *common),
            *("--write-out", "%{http_code} %header{retry-after}\\n", f"{proxy.url}/healthz?[1-400]"),
            stdout=asyncio.subprocess.PIPE,
        )
        answers = Counter((await flood.communicate())[0].decode().splitlines())
    assert {*answers} == {"200 ", "429 2"}
    assert answers["200 "] >= 80, "the burst"

"""Two cells of two replicas each behind one proxy, configured with the files of docs/deploy."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.model import Call, Gate, Model, Step, model_api
from tests.faults.proxy import haproxy, nginx
from tests.faults.replicas import Replica, two_replicas
from tests.support.http_client import Client, said, turn_url
from tests.support.issuer import AUDIENCE, TestIssuer, issuing
from tests.support.reading import Reader
from tests.support.server_process import TURNSTREAM
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = [
    pytest.mark.extensions("cells", "jwt"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.needs("HAProxy", "nginx"),
]

CELLS = ("07", "08")


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), *(f"{number} " for number in range(20)))


@dataclass(frozen=True)
class Cell:
    replicas: tuple[Replica, Replica]
    token: str


@dataclass(frozen=True)
class Site:
    url: str
    model: Model
    cells: Mapping[str, Cell]
    issuer: TestIssuer
    words: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    shared_database_url: str, second_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Model, Mapping[str, Cell], TestIssuer]]:
    cells = {}
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(model_api(held))
        issuer = await stack.enter_async_context(issuing())
        for cell, url in zip(CELLS, (shared_database_url, second_database_url), strict=True):
            async with connect(url, size=1) as database:
                token = await Tokens(database, cell).create("test", Identity("ada"))
            replicas = two_replicas(
                url,
                tmp_path_factory.mktemp(cell),
                model,
                TURNSTREAM_CELL=cell,
                TURNSTREAM_URL_TOKENS="true",
                TURNSTREAM_JWT_ISSUER=issuer.url,
                TURNSTREAM_JWT_AUDIENCE=AUDIENCE,
                TURNSTREAM_JWT_CELL_CLAIM="cell",
            )
            cells[cell] = Cell(await stack.enter_async_context(replicas), token)
        yield model, cells, issuer


@pytest_asyncio.fixture(loop_scope="module", params=["nginx", "HAProxy"])
async def it(
    running: tuple[Model, Mapping[str, Cell], TestIssuer], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    model, cells, issuer = running
    addresses = [replica.address for cell in cells.values() for replica in cell.replicas]
    async with standing_before(request.param, tmp_path, addresses) as url:
        yield Site(url, model, cells, issuer, request.node.name)


@asynccontextmanager
async def standing_before(proxy: str, folder: Path, addresses: Sequence[str]) -> AsyncIterator[str]:
    if proxy == "nginx":
        async with nginx(folder, addresses, file="nginx-cells.conf") as started:
            yield started.url
    else:
        async with haproxy(folder, addresses, file="haproxy-cells.cfg") as url:
            yield url


async def test_turns_of_two_cells_survive_a_replica_that_is_killed(it: Site) -> None:
    """The same name in two cells belongs to two different owners."""
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(Client(it.url, token=cell.token)) for name, cell in it.cells.items()
        }
        turns = {
            name: [await client.json("POST", "/api/turns", 201, json=said(it.words)) for _ in range(4)]
            for name, client in clients.items()
        }
        readers = {name: [Reader(clients[name], turn["stream_url"]) for turn in turns[name]] for name in CELLS}
        async with asyncio.TaskGroup() as group:
            for reader in (*readers["07"], *readers["08"]):
                group.create_task(reader.follow())
            for reader in (*readers["07"], *readers["08"]):
                await reader.until(lambda reader: reader.text() == "first ")
            await it.cells["08"].replicas[0].kill()
            it.model.open("held", [it.words])
        for name, client in clients.items():
            for reader, turn in zip(readers[name], turns[name], strict=True):
                reader.check_whole(await client.json("GET", turn_url(turn["assistant_turn"])))
                assert reader.turn.end == "turn_complete"
        for turn in turns["08"]:
            assert (await clients["07"].get(turn_url(turn["assistant_turn"]))).status_code == 404
        await it.cells["08"].replicas[0].start()


async def test_a_web_token_leads_to_the_cell_of_its_claim(it: Site) -> None:
    it.model.open("held", [it.words])
    token = it.issuer.token("first", cell="08", sub="bob")
    async with Client(it.url, token=token) as bob:
        turn = await bob.json("POST", "/api/turns", 201, json=said(it.words))
        reader = Reader(bob, turn["stream_url"])
        await reader.follow()
        assert reader.turn.end == "turn_complete"
    async with Client(it.cells["08"].replicas[0].url, token=token) as inside:
        reader.check_whole(await inside.json("GET", turn_url(turn["assistant_turn"])))


async def test_a_short_lived_token_in_the_address_leads_to_its_cell(it: Site) -> None:
    it.model.open("held", [it.words])
    async with Client(it.url, token=it.cells["08"].token) as ada, Client(it.url) as anyone:
        turn = await ada.json("POST", "/api/turns", 201, json=said(it.words))
        made = await ada.json("POST", "/api/tokens", json={"scopes": ["read"]})
        answer = await anyone.get(turn["stream_url"], params={"access_token": made["token"]})
        assert (answer.status_code, answer.text.count("event: turn_complete")) == (200, 1)


async def test_a_request_of_no_cell_is_refused_by_the_first(it: Site) -> None:
    async with Client(it.url) as anyone:
        assert (await anyone.get("/api/chats")).status_code == 401
    async with Client(it.url, token=f"ts_99_{'0' * 32}_{'x' * 43}") as lost:
        answer = await lost.get("/api/chats")
        assert (answer.status_code, answer.headers["turnstream-cell"]) == (421, "99")


@pytest.mark.parametrize("proxy", ["nginx", "HAProxy"])
async def test_an_owner_moves_while_turns_run_and_messages_come(
    proxy: str,
    running: tuple[Model, Mapping[str, Cell], TestIssuer],
    shared_database_url: str,
    second_database_url: str,
    tmp_path: Path,
) -> None:
    """The readers reconnect with their cursors, the turns continue in the new cell, and the token stays valid."""
    model, cells, _ = running
    async with connect(shared_database_url, size=1) as database:
        owner = f"mover by {proxy}"
        token = await Tokens(database, "07").create(owner, Identity(owner))
    addresses = [replica.address for cell in cells.values() for replica in cell.replicas]
    model.open("held", ["calm"])
    async with standing_before(proxy, tmp_path, addresses) as url, Client(url, token=token) as client:
        turns = [await client.json("POST", "/api/turns", 201, json=said(f"moving by {proxy}")) for _ in range(4)]
        readers = [Reader(client, turn["stream_url"]) for turn in turns]
        accepted: list[str] = []
        moved = asyncio.Event()

        async def write() -> None:
            while not moved.is_set():
                answer = await client.post("/api/turns", json=said("calm"))
                assert answer.status_code in {201, 503}, answer.text
                if answer.status_code == 201:
                    accepted.append(turn_url(answer.json()["assistant_turn"]))

        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
            for reader in readers:
                await reader.until(lambda reader: reader.text() == "first ")
            group.create_task(write())
            settings = {"DATABASE_URL": shared_database_url, "TURNSTREAM_CELL": "07", "PATH": os.environ["PATH"]}
            command = (TURNSTREAM, "owners", "move", owner, "--to", "08", "--url", second_database_url)
            moving = await asyncio.create_subprocess_exec(
                *command, env=settings, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            output, _ = await moving.communicate()
            assert moving.returncode == 0, output.decode()
            assert f"{owner} is in the cell 08" in output.decode()
            moved.set()
            model.open("held", [f"moving by {proxy}"])
        for reader, turn in zip(readers, turns, strict=True):
            reader.check_whole(await client.json("GET", turn_url(turn["assistant_turn"])))
            assert reader.turn.end == "turn_complete"
        assert accepted
        assert {(await client.get(url)).status_code for url in accepted} == {200}
        async with Client(cells["07"].replicas[0].url, token=token) as before:
            assert (await before.get("/api/chats")).headers["turnstream-cell"] == "08"

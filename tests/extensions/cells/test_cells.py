"""Servers of several cells: the server leads each client to the cell of the credential's owner."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from tests.support.issuer import AUDIENCE, TestIssuer, issuing
from tests.support.openapi_document import Document
from turnstream.domain.identity import Identity
from turnstream.extensions.cells.cell import Cell
from turnstream.storage.database import Statement
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def issuer() -> AsyncIterator[TestIssuer]:
    async with issuing() as issuer:
        yield issuer


@pytest_asyncio.fixture(loop_scope="session")
async def site(issuer: TestIssuer, database_url: str) -> AsyncIterator[Server]:
    async with serving(
        database_url, cell="07", jwt_issuer=issuer.url, jwt_audience=AUDIENCE, jwt_cell_claim="app.cell"
    ) as server:
        yield server


def cell_at(site: Server) -> Cell:
    cell = site.services.states["cells"]
    assert isinstance(cell, Cell)
    return cell


async def refused_to(site: Server, token: str, path: str = "/api/chats") -> str | None:
    """Sends a request that must be refused. Returns the cell that the refusal's header names."""
    # the client must not check the path, because the OpenAPI document does not contain the dialects
    async with Client(site.url, token=token) as client:
        answer = await client.get(path)
        assert answer.status_code == 421, answer.text
        return answer.headers.get("turnstream-cell")


async def status(site: Server, document: Document, token: str) -> int:
    async with Client(site.url, document, token) as client:
        return (await client.get("/api/chats")).status_code


async def test_a_token_has_the_cell_of_the_server_that_creates_it(site: Server, document: Document) -> None:
    token = await Tokens(site.services.storage.database, "07").create("ada's", Identity("ada"))
    assert token.startswith("ts_07_")
    async with Client(site.url, document, token) as ada:
        short = (await ada.json("POST", "/api/tokens", json={}))["token"]
    assert short.startswith("tb_07_")
    assert [await status(site, document, each) for each in (token, short)] == [200, 200]


async def test_a_token_of_another_cell_is_refused_with_its_name(site: Server, document: Document) -> None:
    database = site.services.storage.database
    elsewhere = f"ts_08_{'0' * 32}_{'x' * 43}"
    for path in ("/api/chats", "/v1/models"):
        assert await refused_to(site, elsewhere, path) == "08"
    # If a token's row was moved to this cell, the server accepts the token, whichever cell the token names.
    moved = await Tokens(database, "08").create("moved", Identity("bob"))
    assert await status(site, document, moved) == 200
    before_cells = await Tokens(database).create("from before there were cells", Identity("bob"))
    assert await status(site, document, before_cells) == 200


async def test_a_token_has_one_spelling(site: Server, document: Document) -> None:
    token = await Tokens(site.services.storage.database, "07").create("one spelling", Identity("ada"))
    assert await status(site, document, token.replace("ts_07_", "ts_")) == 401
    assert await refused_to(site, token.replace("ts_07_", "ts_08_")) == "08"


async def test_a_claim_names_the_cell_of_an_owner(site: Server, issuer: TestIssuer, document: Document) -> None:
    for claim in ({"cell": "07"}, {}):
        assert await status(site, document, issuer.token("first", app=claim)) == 200
    assert await refused_to(site, issuer.token("first", app={"cell": "08"})) == "08"


async def with_move(site: Server, owner: str, state: str, held: str = "NULL") -> None:
    """Inserts a move, and waits until the server has read the row of the move."""
    put = Statement(f"INSERT INTO moves (owner, cell, state, held_until) VALUES (:owner, '08', '{state}', {held})")
    await site.services.storage.database.row(put, owner=owner)
    cell = cell_at(site)
    async with asyncio.timeout(60):
        while owner not in cell._moves:  # noqa: ASYNC110, the read has no event
            await asyncio.sleep(0.01)


async def test_an_owner_who_moves_may_read_and_not_write(site: Server, document: Document) -> None:
    token = await Tokens(site.services.storage.database, "07").create("mover", Identity("mover"))
    async with Client(site.url, document, token) as mover:
        chat = await mover.chat(title="Mine")
        await with_move(site, "mover", "leaving", "now() + interval '1 hour'")
        assert (await mover.get(chat)).status_code == 200
        answer = await mover.post("/api/turns", json=said("Hi"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "A move of the owner to the cell 08 is in progress; nothing was stored" in answer.json()["detail"]
        await site.services.storage.database.row(
            Statement("UPDATE moves SET held_until = now() - interval '1 s' WHERE owner = 'mover'")
        )
        async with asyncio.timeout(60):
            while cell_at(site)._moves["mover"].held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await mover.post("/api/chats", json={})).status_code == 201, "whoever moved it has died"


async def test_an_owner_who_has_gone_is_sent_on_and_its_streams_end(
    site: Server, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    token = await Tokens(site.services.storage.database, "07").create("gone", Identity("gone"))
    async with Client(site.url, token=token) as gone, gone.stream("GET", "/api/stream") as events:
        await with_move(site, "gone", "gone")
        text = "".join([chunk async for chunk in events.aiter_text()])
    assert "access_ended" not in text, "a proxy leads the reader to the other cell"
    assert await refused_to(site, token) == "08"


async def test_an_owner_who_has_arrived_is_served_whatever_the_claim_names(
    site: Server, issuer: TestIssuer, document: Document
) -> None:
    await with_move(site, "newcomer", "arrived")
    assert await status(site, document, issuer.token("first", sub="newcomer", app={"cell": "08"})) == 200


async def test_a_server_without_a_cell_reads_none(server: Server, document: Document) -> None:
    token = await Tokens(server.services.storage.database, "08").create("with a cell", Identity("ada"))
    assert await status(server, document, token) == 200
    assert await status(server, document, f"ts_08_{'0' * 32}_{'x' * 43}") == 401

"""Plans of owners at the API: 429 with the name of the limit and the time to wait, before the request spends
anything.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.integration.api.test_owner_limits import Doors, _ended
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.pictures import PIXEL
from turnstream.domain.plans import Plan
from turnstream.scripted import message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
USAGE = {"input_tokens": 100, "output_tokens": 20}


@asynccontextmanager
async def owners(
    database_url: str, document: Document, plan_of: Callable[[str], Plan | str | None]
) -> AsyncIterator[tuple[Server, Client, Client]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(database_url, plan_of=plan_of, poll_interval=60))
        ada, bob = [
            await stack.enter_async_context(Client(server.url, document, await server.token(name), name))
            for name in ("ada", "bob")
        ]
        yield server, ada, bob


async def _refused(client: Client, path: str, **request: Any) -> tuple[str, int]:
    """Expects a refusal, and returns the name of its limit and the seconds to wait."""
    response = await client.post(path, **request)
    assert response.status_code == 429, response.text
    return response.json()["limit"], int(response.headers["retry-after"])


async def test_requests_are_counted_in_every_way_to_ask_for_an_answer(database_url: str, document: Document) -> None:
    plans = {"ada": Plan("small", {"requests_per_day": 2})}
    async with owners(database_url, document, plans.get) as (server, ada, bob):
        model = server.scripts.model(*(message_of(text("Hello.")) for _ in range(9)))
        chat = await ada.chat()
        said = await ada.say(chat, model=model)
        await _ended(ada, said)
        await _ended(ada, await ada.say(chat, model=model))
        body = {"blocks": [{"type": "text", "text": "More"}], "model": model}
        for path in (f"{chat}/turns", "/api/turns"):
            limit, seconds = await _refused(ada, path, json=body)
            assert (limit, 0 < seconds <= 86_401) == ("requests_per_day", True)
        assert (await _refused(ada, f"{said.url}/regenerate", json={}))[0] == "requests_per_day"
        assert (await _refused(ada, f"{said.user_url}/fork", json={"into": "chat"}))[0] == "requests_per_day"
        other = await bob.chat()
        for _ in range(3):
            await _ended(bob, await bob.say(other, model=model))


@pytest.mark.extensions("usage")
async def test_an_owner_who_has_used_the_tokens_of_the_day_is_refused_before_anything_is_written(
    database_url: str, document: Document
) -> None:
    plans = {"ada": Plan("small", {"tokens_per_day": 100})}
    async with owners(database_url, document, plans.get) as (server, ada, _):
        model = server.scripts.model(message_of(text("Hello."), usage=USAGE))
        chat = await ada.chat()
        await _ended(ada, await ada.say(chat, model=model))
        body = {"blocks": [{"type": "text", "text": "More"}], "model": model}
        limit, seconds = await _refused(ada, f"{chat}/turns", json=body)
        assert (limit, 0 < seconds <= 86_401) == ("tokens_per_day", True)
        assert len((await ada.json("GET", f"{chat}/turns"))["turns"]) == 2
        assert (await ada.json("GET", "/api/usage"))["total"]["output_tokens"] == 20


async def test_the_turns_that_run_at_once_are_those_of_the_plan(database_url: str, document: Document) -> None:
    plans = {"ada": Plan("small", running_turns=1), "bob": Plan("large", running_turns=2)}
    async with owners(database_url, document, plans.get) as (server, ada, bob):
        doors = Doors(server, 4)
        turns = [(ada, await ada.say(await ada.chat(), f"Ada {n}", model=doors.name)) for n in range(2)]
        turns += [(bob, await bob.say(await bob.chat(), f"Bob {n}", model=doors.name)) for n in range(2)]
        for pause in doors.pauses[:3]:
            await pause.reached.wait()
        assert sorted(doors.words()) == ["Ada 0", "Bob 0", "Bob 1"]
        for pause in doors.pauses:
            pause.go.set()
        for client, turn in turns:
            await _ended(client, turn)


async def test_files_beyond_the_plan_are_refused_and_those_that_are_there_are_not(
    database_url: str, document: Document
) -> None:
    plans = {"ada": Plan("small", uploads=1), "bob": Plan("large", upload_bytes=100)}
    async with owners(database_url, document, plans.get) as (_, ada, bob):
        octets = {"Content-Type": "application/octet-stream"}
        first = await ada.post("/api/uploads", content=b"one", headers=octets)
        again = await ada.post("/api/uploads", content=b"one", headers=octets)
        assert (first.status_code, again.status_code) == (201, 200)
        assert await _refused(ada, "/api/uploads", content=PIXEL, headers=octets) == ("uploads", 60)
        assert (await bob.post("/api/uploads", content=b"b" * 90, headers=octets)).status_code == 201
        assert (await _refused(bob, "/api/uploads", content=b"c" * 11, headers=octets))[0] == "upload_bytes"
        await ada.delete(f"/api/uploads/{first.json()['id']}")
        assert (await ada.post("/api/uploads", content=PIXEL, headers=octets)).status_code == 201

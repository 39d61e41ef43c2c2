"""Fifty turns in the middle of their work on two replicas, with readers on both replicas: the stage for faults."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2

from tests.faults.model import USAGE, Call, Gate, Model, Step, Use, model_api
from tests.faults.replicas import Replica, replicas_with
from tests.faults.watch import Watch
from tests.support.http_client import Client, Json, said, turn_url
from tests.support.load import slowdown
from tests.support.reading import Reader
from turnstream.storage.migrations import upgrade_in_thread

TURNS = 50
AT_ONCE = TURNS * 3 // 5  # turns that run at once on one replica, so that the other replica also gets some
LEASE = 2.0  # seconds on a quiet machine; longer on a loaded one, which may deny a replica the CPU for that long


def script(call: Call) -> Iterable[Step]:
    """Scripts the model: when Postgres stops, half of the turns are in the middle of a text, and the others in a tool
    call.
    """
    if call.rounds == 0:
        before = ("I act: ", Gate("before the call")) if call.words.startswith("text") else ("I act: ",)
        return (*before, "so. ", Gate("end of text"), Use("act", {"word": call.words}))
    return ("It is ", Gate("before the end"), "done.")


@dataclass(frozen=True)
class Site:
    """The replicas and the turns of a test. Each turn has a reader on each replica; `near` has the readers on the
    replica that runs their turn. `attempts` has the attempts of the turns before any fault.
    """

    model: Model
    replicas: tuple[Replica, Replica]
    watch: Watch
    turns: Sequence[Json]
    readers: Sequence[Reader]
    near: Sequence[Reader]
    attempts: Mapping[UUID, int]
    lease: float

    def go_on(self) -> None:
        """Lets every turn continue to its last reply."""
        for gate in ("before the call", "end of text", "effect"):
            self.model.open(gate)

    def of(self, kind: str, readers: Sequence[Reader]) -> list[Reader]:
        return [reader for reader in readers if reader.name.startswith(kind)]


@asynccontextmanager
async def fifty_turns(
    url: str, folder: Path, own: Sequence[Mapping[str, str]] = ({}, {}), /, **more: str
) -> AsyncIterator[Site]:
    """Starts the replicas and the turns. `more` are settings of all replicas, and `own` are the settings of each
    replica. The replicas and the test use `url`, unless a setting is DATABASE_URL.
    """
    async with model_api(script) as model:
        await upgrade_in_thread(url)
        watch = Watch(url)
        await watch.begin()
        lease = LEASE * slowdown()
        settings = {"TURNSTREAM_LEASE": str(lease), "TURNSTREAM_CONCURRENT_TURNS": str(AT_ONCE), **more}
        async with (
            replicas_with(url, folder, model, *({**settings, **each} for each in own)) as (first, second),
            Client(first.url) as one,
            Client(second.url) as other,
        ):
            replicas = (first, second)
            names = [f"{kind} {number}" for number in range(TURNS // 2) for kind in ("text", "tool")]
            pair = {replica.port: client for replica, client in zip(replicas, (one, other), strict=True)}
            posts = zip(names, (one, other) * TURNS, strict=False)
            turns = await asyncio.gather(*(begin(client, name) for name, client in posts))
            model.open("end of text", [name for name in names if name.startswith("tool")])
            await model.until_reached("before the call", TURNS // 2)
            await model.until_reached("effect", TURNS // 2)
            owners = await watch.owners()
            assert set(owners.values()) == set(pair)
            readers = {
                (turn["id"], port): Reader(client, f"{turn_url(turn)}/stream", name=name)
                for turn, name in zip(turns, names, strict=True)
                for port, client in pair.items()
            }
            near = [readers[turn["id"], owners[turn["id"]]] for turn in turns]
            async with asyncio.TaskGroup() as group:
                for reader in readers.values():
                    group.create_task(reader.follow())
                await until_all(near, lambda reader: reader.text().startswith("I act: "))
                attempts = await watch.attempts()
                yield Site(model, replicas, watch, turns, list(readers.values()), near, attempts, lease)


async def begin(client: Client, words: str) -> Json:
    headers = {"Idempotency-Key": words}
    response = await answer_of(client, "POST", "/api/turns", headers=headers, json=said(words))
    assert response.status_code == 201, response.text
    turn: Json = response.json()["assistant_turn"]
    return turn


async def answer_of(client: Client, method: str, path: str, **request: Any) -> httpx2.Response:
    """Repeats a request, as a client does, while the answer is 503. On a loaded machine, fifty simultaneous messages
    may find no free connection to Postgres, and after a migration Postgres refuses prepared statements once. A request
    gets no answer if the server is just closing its idle connection. Then a GET, or a POST with a key, is sent again.
    """
    repeatable = method == "GET" or "Idempotency-Key" in request.get("headers", {})
    while True:
        try:
            response = await client.request(method, path, **request)
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            if not repeatable:
                raise
        else:
            if response.status_code != 503:
                return response
        await asyncio.sleep(0.1)


async def until_all(readers: Iterable[Reader], condition: Callable[[Reader], bool]) -> None:
    for reader in readers:
        await reader.until(condition)


async def refusal(client: Client, method: str, path: str, **request: object) -> httpx2.Response:
    """Sends the request until the answer is a 503, and returns it."""
    while (response := await client.request(method, path, **request)).status_code != 503:  # type: ignore[arg-type]  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return response


async def finish(site: Site) -> None:
    """Ends the test after a fault that must have no effect on any turn or reader."""
    await end_all(site)
    await check_all_is_well(site)


async def end_all(site: Site) -> None:
    """Lets every turn end after a fault, and waits until every replica is ready."""
    site.go_on()
    await site.model.until_reached("before the end", TURNS)
    await leases_are_renewed(site.watch)
    site.model.open("before the end")
    await until_all(site.readers, lambda reader: reader.turn.end is not None)
    for replica in site.replicas:
        async with Client(replica.url) as client:
            assert (await client.get("/readyz")).status_code == 200


async def check_all_is_well(site: Site) -> None:
    """Checks that no text is lost, that nothing happened twice, and that no replica was declared dead."""
    async with Client(site.replicas[0].url) as client:
        stored = {turn["id"]: await client.json("GET", turn_url(turn)) for turn in site.turns}
    for turn in stored.values():
        assert turn["status"] == "complete"
        assert [block["type"] for block in turn["blocks"]] == ["text", "tool_use", "tool_result", "text"]
        texts = [block["text"] for block in turn["blocks"]]
        assert (texts[0], texts[2], texts[3]) == ("I act: so. ", "ok", "It is done.")
        assert [round["stop_reason"] for round in turn["rounds"]] == ["tool_use", "end_turn"]
        assert turn["usage"] == {name: 2 * figure for name, figure in USAGE.items()}
    for reader in site.readers:
        reader.check_whole(stored[reader.turn.start["turn"]])
    assert set(site.model.effects.values()) == {1}
    assert len(site.model.effects) == TURNS
    assert len(site.model.calls) == 2 * TURNS
    assert await site.watch.charged() == 0
    assert await site.watch.attempts() == site.attempts


async def leases_are_renewed(watch: Watch, times: int = 4) -> None:
    """Waits for so many renewals of the leases that a replica without a valid lease would have been declared dead."""
    for _ in range(times):
        before = await watch.leases()
        while any(until <= before[replica] for replica, until in (await watch.leases()).items()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

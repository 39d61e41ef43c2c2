"""A deployment: two replicas behind nginx are restarted, one after the other, while a hundred turns run. Another test
stops one replica in the middle of a burst of messages.
"""

import asyncio
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.faults.model import Call, Gate, Model, Step, Use, model_api
from tests.faults.proxy import nginx
from tests.faults.replicas import Replica, two_replicas
from tests.faults.watch import Watch
from tests.support.http_client import Client, Json, said, turn_url
from tests.support.load import slowdown
from tests.support.reading import Reader
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.timeout(300)

# The state of each turn when its replica gets SIGTERM. The turn streams and is about to end, streams for longer than
# the grace period, is in the middle of a tool, or is between two rounds.
KINDS = ("ends", "talks", "acts", "pauses")
TURNS = 100
LATE = 10
GRACE = 4.0  # seconds on a quiet machine
# No replica crashes here. Turns change owners because they are released, and never because a loaded replica was slow.
LEASE = 30.0
_RETRY_DELAY = 0.05  # seconds


def script(call: Call) -> Iterable[Step]:
    kind = call.words.split()[0]
    if call.rounds == 0 and kind in {"acts", "pauses"}:
        return (f"Call {call.serial} acts: ", Use("act", {"word": call.words}))
    return (f"Call {call.serial} of {call.words} ", "talks. ", Gate(kind), "Done.")


@dataclass
class Load:
    """The turns that go through the proxy, and their readers."""

    url: str
    token: str
    client: Client
    group: asyncio.TaskGroup
    readers: dict[str, Reader] = field(default_factory=dict)
    turns: list[Json] = field(default_factory=list)

    async def begin(self, words: str) -> None:
        turn = await self._post(words)
        self.turns.append(turn)
        self.group.create_task(self._read(turn))

    async def _read(self, turn: Json) -> None:
        async with Client(self.url, token=self.token) as client:  # a client has a hundred connections at most
            reader = self.readers[turn["id"]] = Reader(client, f"{turn_url(turn)}/stream")
            await reader.follow()

    async def _post(self, words: str) -> Json:
        """Posts with an idempotency key, and repeats the request until it gets an answer, so that there is one turn."""
        while True:
            try:
                answer = await self.client.post("/api/turns", json=said(words), headers={"Idempotency-Key": words})
            except httpx2.TransportError:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            if answer.status_code == 201:
                turn: Json = answer.json()["assistant_turn"]
                return turn
            # 504 means that nginx gave up waiting for a replica on a loaded machine.
            assert answer.status_code in {502, 503, 504}, answer.text
            await asyncio.sleep(_RETRY_DELAY)


async def _is_not_ready(replica: Replica) -> None:
    async with Client(replica.url) as client:
        while (await client.get("/readyz")).status_code != 503:  # noqa: ASYNC110, there is no event for this
            await asyncio.sleep(0.01)
        assert (await client.get("/healthz")).status_code == 200, "it answers while it drains"


async def _restart(replica: Replica, load: Load, model: Model, ending: Sequence[str]) -> None:
    """Restarts the replica. The turns in `ending` end while the replica drains."""
    assert await replica.turns_running() > 0
    gone = asyncio.create_task(replica.terminate())
    await _is_not_ready(replica)
    late = [f"talks while {replica.port} stops {number}" for number in range(LATE)]
    await asyncio.gather(*map(load.begin, late))
    model.open("ends", ending)
    assert await gone in {0, -signal.SIGTERM}
    await replica.start()


async def test_a_rolling_restart_under_load_completes_every_turn_and_keeps_every_reader_whole(
    database_url: str, tmp_path: Path
) -> None:
    watch = Watch(database_url)
    await watch.begin()
    async with connect(database_url, size=1) as database:
        token = await Tokens(database).create("test", Identity("ada"))  # proxied requests need a token
    settings = {"TURNSTREAM_GRACE_PERIOD": str(GRACE * slowdown()), "TURNSTREAM_LEASE": str(LEASE)}
    async with (
        model_api(script) as model,
        two_replicas(database_url, tmp_path, model, **settings) as replicas,
        nginx(tmp_path, [replica.address for replica in replicas]) as proxy,
        Client(proxy.url, token=token) as client,
    ):
        async with asyncio.TaskGroup() as group:
            load = Load(proxy.url, token, client, group)
            names = [f"{kind} {number}" for number in range(TURNS // len(KINDS)) for kind in KINDS]
            model.open("effect", [name for name in names if name.startswith("pauses")])
            await asyncio.gather(*map(load.begin, names))
            for gate, kinds in {"effect": 2, "pauses": 1, "talks": 1, "ends": 1}.items():
                await model.until_reached(gate, kinds * TURNS // len(KINDS))

            ends = [name for name in names if name.startswith("ends")]
            await _restart(replicas[0], load, model, ends[::2])
            await _restart(replicas[1], load, model, ends[1::2])
            for gate in ("effect", *KINDS):
                model.open(gate)
        turns = [await client.json("GET", turn_url(turn)) for turn in load.turns]

    assert {turn["status"] for turn in turns} == {"complete"}
    for turn in turns:
        load.readers[turn["id"]].check_whole(turn)
    assert any(reader.connections > 1 for reader in load.readers.values())
    assert set(model.effects.values()) == {1}
    assert len(model.effects) == 2 * TURNS // len(KINDS)
    assert await watch.charged() == 0
    assert max((await watch.attempts()).values()) > 1, "no turn was released, so the test shows nothing"


async def test_a_server_that_stops_in_a_burst_of_messages_takes_or_refuses_each_and_hands_all_turns_over(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        model_api(script) as model,
        two_replicas(database_url, tmp_path, model, TURNSTREAM_LEASE=str(LEASE)) as (stops, stays),
        Client(stops.url) as one,
        Client(stays.url) as other,
    ):
        watch = Watch(database_url)
        await watch.begin()
        burst = [asyncio.create_task(_post_once(one, f"talks {number}")) for number in range(TURNS)]
        await model.until_reached("talks", 1)
        assert await stops.terminate() == 0
        answers = [await each for each in burst]
        assert {answer.status_code for answer in answers if answer is not None} <= {201, 503}

        again = [await _post_once(other, f"talks {number}") for number in range(TURNS)]
        turns = [answer.json()["assistant_turn"] for answer in again if answer is not None and answer.is_success]
        assert len({turn["id"] for turn in turns}) == TURNS
        for before, turn in zip(answers, turns, strict=True):
            if before is not None and before.is_success:
                assert before.json()["assistant_turn"]["id"] == turn["id"]
        model.open("talks")
        for number, turn in enumerate(turns):
            reader = Reader(other, f"{turn_url(turn)}/stream")
            await reader.follow()
            reader.check_whole(stored := await other.json("GET", turn_url(turn)))
            assert stored["status"] == "complete"
            assert f"of talks {number} talks. Done." in reader.text()
        assert len(await watch.attempts()) == TURNS


async def _post_once(client: Client, words: str) -> httpx2.Response | None:
    """Posts once. Returns None if the server exited before its answer."""
    try:
        return await client.post("/api/turns", headers={"Idempotency-Key": words}, json=said(words))
    except httpx2.TransportError:
        return None

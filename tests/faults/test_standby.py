"""Reads on a hot standby: the age of their data, the changes that they never miss, and the primary as their
fallback.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import pytest_asyncio
from starlette.requests import Request

from tests.faults.postgres import Postgres, own_postgres
from tests.support.http_client import Client, Json, turn_url
from tests.support.http_server import Server, pausing, serving
from turnstream.api.reads import ReadStorage
from turnstream.config import Settings
from turnstream.extensions.doctor.command import Finding, examine
from turnstream.extensions.standby import copy as standby_module
from turnstream.libraries.extension_metrics import STANDBY_READS
from turnstream.scripted import Pause
from turnstream.storage.database import OWNER, Statement
from turnstream.storage.migrations import upgrade_in_thread
from turnstream.storage.row_security import API_ROLE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
module_fixture = pytest_asyncio.fixture(scope="module", loop_scope="module")

STALENESS = 5.0
OLD = {"Cache-Control": "max-stale"}
SLOW = Statement("SELECT count(*) FROM deleted_chats, pg_sleep(60)")
COUNT = Statement("SELECT count(*) FROM deleted_chats")
IN_TRANSACTION = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"


@dataclass(frozen=True)
class LaggingPair:
    """A pair in which no commit waits for the standby."""

    primary: Postgres
    standby: Postgres

    @property
    def settings(self) -> dict[str, Any]:
        """Returns settings with the role of the API, so that row-level security applies on the standby, too."""
        parts = urlsplit(self.standby.url)
        url = parts._replace(netloc=f"{API_ROLE}@").geturl()
        return {"standby_url": url, "standby_staleness": STALENESS}


async def execute(postgres: Postgres, *statements: str) -> None:
    async with postgres.connected() as connection:
        for each in statements:
            await connection.execute(each)


@module_fixture
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LaggingPair]:
    async with own_postgres(tmp_path_factory.mktemp("primary")) as primary:
        await upgrade_in_thread(primary.url)
        standby = Postgres(tmp_path_factory.mktemp("standby"))
        await standby.copy(primary)
        await standby.start()
        try:
            yield LaggingPair(primary, standby)
        finally:
            await standby.leave()


@module_fixture
async def sites(pair: LaggingPair) -> AsyncIterator[tuple[Server, Server]]:
    """Yields two replicas on the pair. After a failed read, they try the standby again within a moment."""
    patch = pytest.MonkeyPatch()
    patch.setattr(standby_module, "_PAUSE", 0.05)
    async with (
        serving(pair.primary.url, port=1, **pair.settings) as one,
        serving(pair.primary.url, port=2, **pair.settings) as other,
    ):
        yield one, other
    patch.undo()


@module_fixture
async def clients(sites: tuple[Server, Server]) -> AsyncIterator[tuple[Client, Client]]:
    token = await sites[0].token("ada")
    async with Client(sites[0].url, token=token) as one, Client(sites[1].url, token=token) as other:
        yield one, other


async def from_standby(client: Client, path: str, **params: Any) -> httpx2.Response:
    """Repeats the read until the standby answers, and returns this answer."""
    asked = monotonic()
    while "age" not in (answer := await client.get(path, params=params, headers=OLD)).headers:
        assert answer.status_code == 200, answer.text
        await asyncio.sleep(0.02)
        asked = monotonic()
    assert is_old(answer, STALENESS, asked)
    return answer


def is_old(answer: httpx2.Response, most: float, asked: float) -> bool:
    """Returns whether the answer was at most `most` seconds old at the time of its request. `Age` gives the age at
    which the answer was sent.
    """
    return 0 <= int(answer.headers["age"]) <= most + (monotonic() - asked) + 1


async def ended_turn(client: Client, words: str = "Hi") -> Json:
    return (await client.ask(await client.chat(), words)).assistant


def outcomes() -> Counter[str]:
    (family,) = STANDBY_READS.collect()
    return Counter({each.labels["outcome"]: int(each.value) for each in family.samples})


async def test_an_ended_turn_is_read_on_the_standby_as_on_the_primary(clients: tuple[Client, Client]) -> None:
    client, other = clients
    turn = await ended_turn(client, "a word about walruses")
    chat = f"/api/chats/{turn['chat_id']}"
    for path, params in (
        (turn_url(turn), {}),
        (f"{turn_url(turn)}/path", {}),
        (f"{turn_url(turn)}/siblings", {}),
        (f"{chat}/turns/{turn['parent_id']}/children", {}),
        (f"{chat}/turns", {}),
        ("/api/chats", {"q": "walruses"}),
        ("/api/chats", {"before": f"{2**52}_{'f' * 32}"}),
    ):
        while (old := await from_standby(other, path, **params)).json() != (
            now := (await other.get(path, params=params)).json()
        ):
            assert len(str(old.json())) <= len(str(now)), path  # the standby had less
    now = await other.events(f"{turn_url(turn)}/stream")
    streamed = await from_standby(other, f"{turn_url(turn)}/stream")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert [line[4:] for line in streamed.text.splitlines() if line.startswith("id: ")] == [each.id for each in now]


async def test_no_client_gets_an_old_answer_unless_it_accepts_one(clients: tuple[Client, Client]) -> None:
    client, _ = clients
    turn = await ended_turn(client)
    await from_standby(client, turn_url(turn))
    for accepted in ("max-stale=0", "max-stale, no-cache", "max-age=60", "max-stale=-1", "max-stale=x", ""):
        answer = await client.get(turn_url(turn), headers={"Cache-Control": accepted})
        assert "age" not in answer.headers, accepted
    assert "age" not in (await client.get(f"{turn_url(turn)}/why", headers=OLD)).headers


async def test_a_feed_continues_from_an_old_list_without_a_gap(
    pair: LaggingPair, clients: tuple[Client, Client]
) -> None:
    client, other = clients
    await execute(pair.standby, "SELECT pg_wal_replay_pause()")
    try:
        chat = await client.chat(title="made meanwhile")
        page = (await from_standby(other, "/api/chats")).json()
    finally:
        await execute(pair.standby, "SELECT pg_wal_replay_resume()")
    assert chat.endswith(page["chats"][0]["id"]) is False
    async with other.follow("/api/stream", page["cursor"]) as events:
        async for event in events:
            if event.name == "chat" and chat.endswith(event.data["id"]):
                break


async def test_a_turn_that_runs_is_read_on_the_primary(
    sites: tuple[Server, Server], clients: tuple[Client, Client]
) -> None:
    client, other = clients
    pause = Pause()
    model = sites[0].scripts.model(pausing(pause, "Hel", "lo."))
    said = await client.say(await client.chat(), model=model)
    before = outcomes()
    while outcomes()["unfinished"] == before["unfinished"]:
        answer = await other.get(turn_url(said.assistant), headers=OLD)
        assert answer.json()["status"] != "complete"
        assert "age" not in answer.headers
    pause.go.set()
    await client.events(said.stream_url)
    assert (await from_standby(other, turn_url(said.assistant))).json()["status"] == "complete"


async def test_a_search_misses_nothing_that_the_standby_has_and_has_not_indexed(
    pair: LaggingPair, clients: tuple[Client, Client]
) -> None:
    client, _ = clients
    async with pair.primary.connected() as connection:
        await connection.execute(
            "SELECT pg_advisory_lock('search_pending'::regclass::oid::bigint)"
        )  # while the lock is held, nothing is indexed
        turn, before = await ended_turn(client, "a word about herons"), outcomes()
        await from_standby(client, turn_url(turn))
        while outcomes()["unfinished"] == before["unfinished"]:
            answer = await client.get("/api/chats", params={"q": "herons"}, headers=OLD)
            assert "age" not in answer.headers
        assert outcomes()["away"] == before["away"]
    found = (await from_standby(client, "/api/chats", q="herons")).json()
    assert [each["id"] for each in found["chats"]] == [turn["chat_id"]]


async def test_a_session_sees_its_own_changes_on_every_replica_while_the_standby_lags(
    pair: LaggingPair, clients: tuple[Client, Client], record_property: Any
) -> None:
    """Each read accepts an age that reaches back to one of the last changes, in whole seconds, and must show that
    change.
    """
    await execute(pair.standby, "ALTER SYSTEM SET recovery_min_apply_delay = '300ms'", "SELECT pg_reload_conf()")
    chat = await clients[0].chat(title="0")
    changes: list[float] = []  # the time of each change's answer
    by_standby = Counter[int]()
    while by_standby.total() < 200:
        number = len(changes)
        await clients[number % 2].json("PATCH", chat, json={"title": str(number + 1)})
        changes.append(monotonic())
        for last in {number, number * 3 // 4, number // 2}:
            accepted = int(monotonic() - changes[last])
            reader, asked = clients[(number + 1) % 2], monotonic()
            answer = await reader.get("/api/chats", headers={"Cache-Control": f"max-stale={accepted}"})
            title = next(each["title"] for each in answer.json()["chats"] if chat.endswith(each["id"]))
            assert int(title) > last
            if "age" in answer.headers:
                by_standby[accepted] += 1
                assert is_old(answer, accepted, asked)
    record_property("reads of changes on a standby", dict(by_standby))
    await execute(pair.standby, "ALTER SYSTEM RESET recovery_min_apply_delay", "SELECT pg_reload_conf()")


async def test_a_query_that_conflicts_with_recovery_is_repeated_on_the_primary(
    pair: LaggingPair, sites: tuple[Server, Server], clients: tuple[Client, Client]
) -> None:
    await from_standby(clients[0], turn_url(await ended_turn(clients[0])))
    await execute(pair.standby, "ALTER SYSTEM SET max_standby_streaming_delay = 0", "SELECT pg_reload_conf()")
    request = Request({"type": "http", "headers": [(b"cache-control", b"max-stale")], "state": {}})
    asked: list[str] = []

    async def read(storage: ReadStorage) -> int:
        asked.append("primary" if storage.time is None else "standby")
        if storage.time is not None:
            vacuuming = asyncio.create_task(vacuum_under_queries(pair))
            try:
                await storage.chats._database.rows(SLOW)
            finally:
                await vacuuming
        return len(await storage.chats.page("ada", 1, None))

    before, owner = outcomes(), OWNER.set("ada")
    assert await sites[0].app.state.services.reads.read(request, read) == 1
    OWNER.reset(owner)
    assert asked == ["standby", "primary"]
    assert outcomes() - before == {"away": 1}
    assert not hasattr(request.state, "age")
    await execute(pair.standby, "ALTER SYSTEM RESET max_standby_streaming_delay", "SELECT pg_reload_conf()")


async def test_a_conflict_with_recovery_between_two_queries_costs_no_other_read(
    pair: LaggingPair, sites: tuple[Server, Server], clients: tuple[Client, Client]
) -> None:
    """In a conflict with recovery, Postgres ends the session."""
    await from_standby(clients[0], turn_url(await ended_turn(clients[0])))
    await execute(pair.standby, "ALTER SYSTEM SET max_standby_streaming_delay = 0", "SELECT pg_reload_conf()")
    reads = sites[0].app.state.services.reads
    asked: list[str] = []

    async def read(storage: ReadStorage) -> int:
        asked.append("primary" if storage.time is None else "standby")
        if storage.time is not None:
            await storage.chats._database.rows(COUNT)
            await remove_rows(pair)
            async with pair.standby.connected() as standby:
                while await standby.fetchval(IN_TRANSACTION):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return len(await storage.chats.page("ada", 1, None))

    owner = OWNER.set("ada")
    assert await reads.read(Request({"type": "http", "headers": [(b"cache-control", b"max-stale")], "state": {}}), read)
    OWNER.reset(owner)
    assert asked == ["standby", "primary"]
    assert reads._copy._circuit.failures == 0
    await execute(pair.standby, "ALTER SYSTEM RESET max_standby_streaming_delay", "SELECT pg_reload_conf()")


async def vacuum_under_queries(pair: LaggingPair) -> None:
    """Removes rows that a query on the standby may still need."""
    async with pair.standby.connected() as standby:
        while not await standby.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await remove_rows(pair)


async def remove_rows(pair: LaggingPair) -> None:
    await execute(
        pair.primary,
        "INSERT INTO deleted_chats SELECT 'ada', gen_random_uuid(), now()",
        "DELETE FROM deleted_chats",
        "VACUUM (TRUNCATE FALSE) deleted_chats",
    )


async def test_the_doctor_compares_the_standby_with_the_primary(pair: LaggingPair) -> None:
    async def found(url: str, **more: Any) -> Finding:
        settings = Settings(
            _env_file=None, database_url=pair.primary.url, standby_url=url, anthropic_api_key=None, **more
        )
        (finding,) = [each for each in await examine(settings, True) if each.check == "standby"]
        return finding

    assert (await found(pair.standby.url)).status == "ok"
    assert "names a primary" in (await found(pair.primary.url)).text
    assert "does not answer" in (await found("postgresql://nobody@127.0.0.1:1/none")).text
    await execute(pair.standby, "SELECT pg_wal_replay_pause()")
    try:
        await execute(pair.primary, "SELECT pg_logical_emit_message(true, 'turnstream', 'one more')")
        behind = await found(pair.standby.url, standby_staleness=1)
    finally:
        await execute(pair.standby, "SELECT pg_wal_replay_resume()")
    assert behind == Finding("standby", "ok", "more than 1 seconds behind: all reads are made on the primary")


async def test_a_standby_that_freezes_or_dies_under_reads_is_no_error(
    pair: LaggingPair, clients: tuple[Client, Client]
) -> None:
    client, other = clients
    turn = await ended_turn(client)
    await from_standby(client, turn_url(turn))
    with pair.standby.frozen():
        answers = await asyncio.gather(*(client.get(turn_url(turn), headers=OLD) for _ in range(5)))
        assert [(each.status_code, "age" in each.headers) for each in answers] == [(200, False)] * 5
    await from_standby(client, turn_url(turn))
    reading = [asyncio.create_task(read_until_away(each, turn)) for each in clients]
    await pair.standby.stop(signal.SIGQUIT)
    await asyncio.gather(*reading)
    assert (await other.get("/readyz")).status_code == 200
    async with serving(pair.primary.url, port=3, **pair.settings) as started:  # started although the standby is away
        token = await started.token("ada")
        async with Client(started.url, token=token) as third:
            assert "age" not in (await third.get(turn_url(turn), headers=OLD)).headers
    await pair.standby.start()
    await from_standby(client, turn_url(turn))


async def read_until_away(client: Client, turn: Json) -> None:
    """Reads until the standby is unavailable. The last read is answered by the primary."""
    before = outcomes()
    while outcomes()["away"] == before["away"]:
        answer = await client.get(turn_url(turn), headers=OLD)
        assert answer.status_code == 200


async def test_a_promoted_standby_answers_only_as_long_as_it_is_not_too_old(
    pair: LaggingPair, clients: tuple[Client, Client]
) -> None:
    """This test must be the last on the pair."""
    client, _ = clients
    turn = await ended_turn(client)
    await from_standby(client, turn_url(turn))
    await execute(pair.standby, "SELECT pg_promote()")
    promoted, before = monotonic(), outcomes()
    while outcomes()["behind"] == before["behind"]:
        changed = await client.chat(title="after the promotion")
        made = monotonic()
        answer = await client.get("/api/chats", headers=OLD)
        if "age" in answer.headers:
            assert is_old(answer, STALENESS, made)
            assert made - promoted < STALENESS + 1
        else:
            assert changed.endswith(answer.json()["chats"][0]["id"])
    assert "age" not in (await client.get("/api/chats", headers=OLD)).headers

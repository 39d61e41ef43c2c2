"""The supervised parts of a server: its own turns, its own Postgres, and its processes."""

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.model import Call, Gate, Step, Use, model_api
from tests.faults.replicas import replica_with
from tests.faults.two_processes import TwoProcesses, running, until_both_serve
from tests.faults.watch import Watch
from tests.support.http_client import Client, Json, said, turn_url
from tests.support.reading import Reader
from tests.support.server_process import Server

pytestmark = pytest.mark.timeout(240)

TURNS = 10


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), "last.")


@pytest.mark.full
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
    """The lease of the killed server would last for an hour, but its session has ended."""
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


@pytest.mark.full
async def test_an_embedded_postgres_that_is_killed_is_started_again_under_its_turns(tmp_path: Path) -> None:
    async with model_api(held) as model:
        # Without DATABASE_URL, the server runs a Postgres of its own.
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


BUSY = '''
import asyncio, time
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

@tool(timeout=60)
async def compute() -> str:
    """Holds the event loop most of the time, and never for a lease."""
    for _ in range(12):
        time.sleep(0.5)
        await asyncio.sleep(0)
    return "done"

toolset = Toolset([compute])
'''


def asks_to_compute(call: Call) -> Iterable[Step]:
    return ("ok",) if call.rounds else (Use("compute", {}),)


@pytest.mark.full
async def test_a_process_that_is_frozen_is_replaced_and_its_turns_end_whole(database_url: str, tmp_path: Path) -> None:
    async with model_api(held) as model, AsyncExitStack() as stack:
        key = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url}
        server = TwoProcesses(database_url, tmp_path, {**key, "TURNSTREAM_LEASE": "3"})
        stack.push_async_callback(server.close)
        await server.start()
        async with Client(server.url) as client:
            await until_both_serve(client)
            posted: list[Json] = []
            while not posted or not all((await running(client)).values()):
                async with Client(server.url) as other:  # a new connection, which either process may accept
                    posted.append(await other.json("POST", "/api/turns", 201, json=said("Go")))
            readers = [Reader(client, f"{turn_url(each['assistant_turn'])}/stream") for each in posted]
            async with asyncio.TaskGroup() as group:
                for reader in readers:
                    group.create_task(reader.follow())
                    await reader.until(lambda reader: reader.text() == "first ")
                frozen, other_process = server.processes()
                frozen.suspend()
                await asyncio.to_thread(psutil.wait_procs, [frozen])
                model.open("held")
            await until_both_serve(client)
            for reader, each in zip(readers, posted, strict=True):
                reader.check_whole(await client.json("GET", turn_url(each["assistant_turn"])))
        assert {reader.turn.end for reader in readers} == {"turn_complete"}
        assert server.logs.count("process.silent") == 1
        assert [each.pid for each in server.processes()].count(other_process.pid) == 1
        assert await server.terminate() == 0


@pytest.mark.full
async def test_a_process_that_is_frozen_while_all_are_stopped_does_not_keep_the_server(
    database_url: str, tmp_path: Path
) -> None:
    server = TwoProcesses(database_url, tmp_path, {})
    await server.start()
    try:
        async with Client(server.url) as client:
            await until_both_serve(client)
        server.processes()[0].suspend()
        assert await server.terminate() == 0
    finally:
        await server.close()


@pytest.mark.full
async def test_processes_that_stood_still_together_with_the_one_that_watches_are_kept(
    database_url: str, tmp_path: Path
) -> None:
    """The processes look as on a machine that was suspended: none has sent a sign of life."""
    server = TwoProcesses(database_url, tmp_path, {"TURNSTREAM_LEASE": "2"})
    await server.start()
    try:
        async with Client(server.url) as client:
            await until_both_serve(client)
        processes = server.processes()
        for _ in range(3):
            for each in (*processes, psutil.Process(server.pid)):
                each.suspend()
            await asyncio.sleep(3)  # longer than a lease
            for each in (psutil.Process(server.pid), *processes):
                each.resume()
            await asyncio.sleep(0.5)  # shorter than a lease
        await asyncio.sleep(2)
        assert server.processes() == processes
        assert "process.silent" not in server.logs
    finally:
        await server.close()


@pytest.mark.full
async def test_a_process_that_is_busy_is_kept(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY, encoding="utf-8")
    async with model_api(asks_to_compute) as model:
        key = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url, "TURNSTREAM_TOOLSET": "busy:toolset"}
        server = TwoProcesses(database_url, tmp_path, {**key, "TURNSTREAM_LEASE": "3"})
        await server.start()
        try:
            async with Client(server.url) as client:
                await until_both_serve(client)
                processes = server.processes()
                posted = await client.json("POST", "/api/turns", 201, json=said("Go"))
                reader = Reader(client, f"{turn_url(posted['assistant_turn'])}/stream")
                await reader.follow()
                assert reader.turn.end == "turn_complete"
            assert "loop.held" in server.logs
            assert "process.silent" not in server.logs
            assert server.processes() == processes
        finally:
            await server.close()


@pytest.mark.parametrize("kind", [Server, pytest.param(TwoProcesses, marks=pytest.mark.full)])
async def test_systemd_gets_signs_of_life_for_as_long_as_a_process_is_not_frozen(
    kind: type[Server], database_url: str, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)

        async def received(state: bytes) -> None:
            while await loop.sock_recv(systemd, 100) != state:
                pass

        async def silence() -> None:
            with suppress(TimeoutError):
                while True:
                    await asyncio.wait_for(loop.sock_recv(systemd, 100), 2)

        watchdog = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        server = kind(database_url, tmp_path, {**watchdog, "TURNSTREAM_LEASE": "600"})
        try:
            await server.start()
            await received(b"READY=1")
            for _ in range(10):
                await received(b"WATCHDOG=1")
            frozen = server.processes() if isinstance(server, TwoProcesses) else [psutil.Process(server.pid)]
            for each in frozen:
                each.suspend()
            await silence()
            for each in frozen:
                each.resume()
            await received(b"WATCHDOG=1")
            assert await server.terminate() == 0
            await received(b"STOPPING=1")
        finally:
            await server.close()


async def test_signs_of_life_of_another_process_are_not_sent(database_url: str, tmp_path: Path) -> None:
    """WATCHDOG_PID names the process that systemd watches. The children of this process inherit the variables."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        watchdog = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "1000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        server = Server(database_url, tmp_path, watchdog)
        try:
            await server.start()
            assert await server.terminate() == 0
        finally:
            await server.close()
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]

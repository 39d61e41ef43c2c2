"""`turnstream serve --workers 2`: two processes on one port, and a third process that supervises them."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import psutil
import pytest

from tests.faults.model import Call, Gate, Model, Step, model_api
from tests.faults.two_processes import TwoProcesses, running, until_both_serve
from tests.support.http_client import Client, Said, said
from tests.support.reading import Reader
from turnstream.domain.identity import Identity
from turnstream.extensions.workers import supervisor
from turnstream.extensions.workers.supervisor import Processes
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.timeout(240)

MANY = 16  # the chance that one process gets them all is one in 32,768


def held(call: Call) -> Iterable[Step]:
    return ("first ", Gate("held"), *(f"{number} " for number in range(20)))


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with model_api(held) as model:
        yield model


@pytest.fixture
async def server(database_url: str, tmp_path: Path, model: Model) -> AsyncIterator[TwoProcesses]:
    # Without a journal, only the process that runs a turn has the text of its open block.
    settings = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url, "TURNSTREAM_JOURNAL_INTERVAL": "3600"}
    browsers = {"TURNSTREAM_ROOT_PATH": "/chat", "TURNSTREAM_URL_TOKENS": "true"}
    server = TwoProcesses(database_url, tmp_path, settings | browsers)
    await server.start()
    async with Client(server.url) as client:
        await until_both_serve(client)
    yield server
    await server.close()


async def begin(client: Client, words: str = "Go") -> Said:
    answer = await client.json("POST", "/api/turns", 201, json=said(words))
    return Said(answer["user_turn"], answer["assistant_turn"], answer["stream_url"].removeprefix("/chat"))


async def begin_on_both(server: TwoProcesses, token: str | None = None) -> list[Said]:
    """Begins turns until both processes have some. Returns the turns when they run. On a busy machine some turns are
    queued first, and their readers get the text from the journal.
    """
    turns = []
    for _ in range(MANY):
        async with Client(server.url, token=token) as client:  # a new connection, which either process may accept
            turns.append(await begin(client))
            while (await client.json("GET", turns[-1].url))["status"] == "queued":  # noqa: ASYNC110, of another process
                await asyncio.sleep(0.05)
    return turns


async def test_a_turn_of_the_other_process_is_read_without_the_journal(server: TwoProcesses, model: Model) -> None:
    async with Client(server.url) as client:
        turns = await begin_on_both(server)
        readers = [Reader(client, turn.stream_url) for turn in turns for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
            for reader in readers:
                await reader.until(lambda reader: reader.text() == "first ")
            counts = await running(client)
            assert sum(counts.values()) == MANY
            assert all(counts.values()), "both have some"
            model.open("held")
        for reader, turn in zip(readers[::2], turns, strict=True):
            reader.check_whole(await client.json("GET", turn.url))
        assert {reader.connections for reader in readers} == {1}
    assert await server.terminate() == 0


async def test_a_token_in_the_address_is_passed_on(server: TwoProcesses, model: Model, database_url: str) -> None:
    async with connect(database_url, size=1) as database:
        token = await Tokens(database).create("page", Identity("ada"))
    turns = await begin_on_both(server, token)
    async with Client(server.url, token=token) as owner, Client(server.url) as client:
        made = await owner.json("POST", "/api/tokens", 200, json={"scopes": ["read"]})
        readers = [Reader(client, f"{turn.stream_url}?access_token={made['token']}") for turn in turns]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
            for reader in readers:
                await reader.until(lambda reader: reader.text() == "first ")
            model.open("held")
        for reader, turn in zip(readers, turns, strict=True):
            reader.check_whole(await owner.json("GET", turn.url))


async def test_a_process_that_dies_takes_nothing_along(server: TwoProcesses, model: Model) -> None:
    async with Client(server.url) as client:
        turns = await begin_on_both(server)
        readers = [Reader(client, turn.stream_url) for turn in turns]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
            for reader in readers:
                await reader.until(lambda reader: reader.text() == "first ")
            victim, other = server.processes()
            victim.kill()
            model.open("held")
        for reader, turn in zip(readers, turns, strict=True):
            reader.check_whole(await client.json("GET", turn.url))
            assert reader.turn.end == "turn_complete"
        await until_both_serve(client)
    assert other.pid in {each.pid for each in server.processes()}


async def test_signals_that_reach_all_processes_cut_no_turn_off_and_a_second_one_does(
    server: TwoProcesses, model: Model
) -> None:
    """systemd, and a terminal at Ctrl-C, send the signal to every process, as the supervising process does."""
    await server.restart(TURNSTREAM_GRACE_PERIOD="600")
    async with Client(server.url) as client:
        await until_both_serve(client)
        turns = await begin_on_both(server)
        await begin(client, "Stay")
        readers = [Reader(client, turn.stream_url) for turn in turns]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
            for reader in readers:
                await reader.until(lambda reader: reader.text() == "first ")
            for process in (*server.processes(), *server.processes(), psutil.Process(server.pid)):
                process.terminate()
            while (await client.get("/readyz")).status_code != 503:  # noqa: ASYNC110, a signal has no event here
                await asyncio.sleep(0.05)
            model.open("held", ["Go"])
        assert {reader.turn.end for reader in readers} == {"turn_complete"}
        assert {reader.connections for reader in readers} == {1}
    assert await server.terminate() == 0


async def test_processes_end_with_the_one_that_watches_over_them(server: TwoProcesses) -> None:
    processes = server.processes()
    assert len(processes) == 2
    await server.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 60)
    assert alive == []


async def test_no_other_user_connects_to_a_socket_between_the_processes(server: TwoProcesses) -> None:
    folder = Path(server.processes()[0].cmdline()[-1].partition(":")[2])
    modes = {path.name: path.stat().st_mode for path in folder.iterdir() if path.is_socket()}
    assert len(modes) == 4, "one for requests and one for notes of each process"
    assert {oct(mode & 0o777) for mode in modes.values()} == {"0o600"}


async def test_settings_that_no_process_can_start_with_end_all(database_url: str, tmp_path: Path) -> None:
    server = TwoProcesses(database_url, tmp_path, {"TURNSTREAM_TOOLS_FILE": "missing.toml"})
    with pytest.raises(AssertionError, match="the server ended with 1"):
        await server.start()
    assert "missing.toml" in server.logs


async def test_a_process_that_the_system_cannot_start_again_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSE", 0)
    processes, tries = Processes(0, tmp_path, count=1, lease=10), []

    async def start(number: int) -> asyncio.subprocess.Process:
        tries.append(number)
        if len(tries) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        processes.stop()
        return await asyncio.create_subprocess_exec("true")

    monkeypatch.setattr(processes, "_started", start)
    processes.note_ready(1)
    await processes.run()
    assert tries == [1, 1]

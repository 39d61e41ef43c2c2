"""No secret is in plain text on disk: not in a dump, in a base backup, or in the database files with the write-ahead
log. The master key is only in the key file.
"""

import subprocess
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.extensions.http_tools.test_http_tools import serving as serving_tools
from tests.extensions.keys.test_old_secrets import WORDS, answer, fill, options, served
from tests.faults.model import Call, Gate, Step, Use, model_api
from tests.faults.postgres import Postgres, own_postgres
from tests.support.http_client import Client, said, turn_url
from tests.support.reading import Reader
from tests.support.server_process import Server
from turnstream.extensions.embedded import cluster
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import ScriptedProvider
from turnstream.tools.secrets import SEALED

pytestmark = [pytest.mark.timeout(240), pytest.mark.extensions("embedded", "http_tools", "keys", "schedules")]

SAID = "How is it?"  # the unencrypted text in each message of `fill`; a hit proves that the search of the files works


def found_in(folder: Path, words: Iterable[str]) -> dict[str, set[str]]:
    """Returns, for each word, the parts of the folder that contain the word."""
    found: dict[str, set[str]] = {word: set() for word in words}
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for word, parts in found.items():
                if word.encode() in content:
                    parts.add(file.relative_to(folder).parts[0])
    return found


async def test_no_dump_no_backup_and_no_write_ahead_log_has_a_secret(tmp_path: Path) -> None:
    copy, dumps = Postgres(tmp_path / "backup"), tmp_path / "dumps"
    dumps.mkdir()
    async with own_postgres(tmp_path / "own") as postgres, AsyncExitStack() as stack:
        service = await serving_tools(stack)
        service.answer("/", text="Rain.")
        async with served(postgres.url, new_master_key(), ScriptedProvider(answer)) as server:
            await fill(server, service)
        dump = subprocess.run(
            [cluster.program("pg_dump"), f"--dbname={postgres.url}"], check=True, capture_output=True, timeout=60
        )
        (dumps / "sql").write_bytes(dump.stdout)
        await copy.copy(postgres)
        await postgres.stop()
        assert [headers["authorization"] for _, _, headers, _ in service.requests] == [f"Bearer {WORDS[0]}"] * 2
        for folder, parts in (
            (dumps, {"sql"}),
            (copy.folder / "postgres", {"base"}),
            (postgres.folder / "postgres", {"base", "pg_wal"}),
        ):
            found = found_in(folder, (SAID, SEALED, *WORDS))
            assert found[SAID] >= parts, "the search finds plain text in each"
            assert found[SEALED] >= parts
            assert {word: found[word] for word in WORDS} == {word: set() for word in WORDS}


@pytest.mark.full
async def test_a_server_that_was_killed_finds_its_key_in_the_file(tmp_path: Path) -> None:
    def script(call: Call) -> Iterable[Step]:
        return ("first ", Gate("held"), Use("weather", {})) if call.rounds == 0 else ("last.",)

    file = tmp_path / "data" / "master.key"
    async with model_api(script) as model, AsyncExitStack() as stack:
        service = await serving_tools(stack)
        service.answer("/", text="Rain.")
        settings = {
            "TURNSTREAM_DATA_DIR": str(file.parent),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": model.url,
            "TURNSTREAM_REQUEST_TOOLS_ALLOW": "127.0.0.1",
        }
        server = Server("", tmp_path, settings)  # without DATABASE_URL, the server starts its own Postgres
        stack.push_async_callback(server.close)
        await server.start()
        key, mode = file.read_text(), file.stat().st_mode & 0o777
        async with Client(server.url) as client:
            weather = options(service)["tools"][0]
            posted = await client.json("POST", "/api/turns", 201, json={**said("Go"), "tools": [weather]})
            turn = turn_url(posted["assistant_turn"])
            await model.until_reached("held", 1)
            await server.kill()
            await server.start()
            model.open("held")
            reader = Reader(client, f"{turn}/stream")
            await reader.follow()
            assert reader.turn.end == "turn_complete"
        assert (file.read_text(), mode) == (key, 0o600)
        assert [headers["authorization"] for _, _, headers, _ in service.requests] == [f"Bearer {WORDS[0]}"]
        assert await server.terminate() == 0
    found = found_in(file.parent, (SEALED, WORDS[0]))
    assert found[SEALED] >= {"postgres"}
    assert found[WORDS[0]] == set()
    assert found_in(file.parent / "postgres", [key.strip()]) == {key.strip(): set()}

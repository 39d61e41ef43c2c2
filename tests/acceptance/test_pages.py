"""The commands of pages in docs that need only a server."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import StartServer
from tests.support.http_client import Client, said
from tests.support.server_process import Server, clean_environment
from turnstream.libraries.outgoing.signature import key_of

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"

pytestmark = [pytest.mark.needs("curl"), pytest.mark.timeout(180)]


def section(page: str, heading: str, kind: str) -> list[str]:
    text = re.split(rf"^#+ {heading}\n", (ROOT / page).read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[1]
    text = text.split("\n## ", 1)[0]
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell(commands: str, folder: Path, **environment: str) -> str:
    if not (folder / ".venv").exists():  # the pages use `.venv/bin/turnstream`
        (folder / ".venv").symlink_to(sys.prefix)
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{commands}"],
        cwd=folder,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_chance(printed: str) -> str:
    """Replaces values that are random or differ between runs: tokens, dates, names of databases."""
    printed = re.sub(r"ts_\w{32}_[\w-]{43}", "ts_…", printed)
    return re.sub(r"\d{4}-\d\d-\d\d(T[\d:.]+Z| \d\d:\d\d)?|\(/\w+\)", "…", printed)


async def test_documents_are_imported_and_put_as_the_page_says(
    server: StartServer, database_url: str, tmp_path: Path
) -> None:
    running = await server()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/dover.md").write_text("High water at noon.")
    (tmp_path / "tide.md").write_text("# Tides\n")
    (commands,), (printed,) = (section("docs/tools.md", "The document tools", kind) for kind in ("sh", "text"))
    found = shell(commands.replace(ADDRESS, running.url), tmp_path, DATABASE_URL=database_url)
    assert without_chance(found + "\n") == without_chance(printed)  # curl adds no line break at the end


async def test_the_terminal_lists_chats_and_answers_as_its_page_says(server: StartServer, tmp_path: Path) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY="0")
    _, commands = section("app/turnstream_terminal/README.md", "turnstream-terminal", "sh")
    first, *others = commands.splitlines()
    assert first == f"turnstream-chat --server {ADDRESS}"  # this command needs a terminal
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    printed = shell("\n".join(reversed(others)), tmp_path, PATH=path, TURNSTREAM_URL=running.url)
    async with Client(running.url) as api:
        (chat,) = (await api.json("GET", "/api/chats", 200))["chats"]
    assert chat["id"] in printed


async def test_a_token_opens_the_stream_as_the_pages_say(
    server: StartServer, database_url: str, tmp_path: Path
) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY="0")
    (commands,), (printed,) = (section("docs/identity.md", "Who may use it", kind) for kind in ("sh", "text"))
    found = shell(commands, tmp_path, DATABASE_URL=database_url)
    assert without_chance(found) == without_chance(printed)
    async with Client(running.url, token=found.splitlines()[0]) as api:
        exchange = await api.json("POST", "/api/turns", 201, json=said("/say Hello."))
        assert (await api.events(exchange["stream_url"]))[-1].name == "turn_complete"


async def test_the_embedded_database_is_dumped_and_restored_as_the_page_says(
    database_url: str, postgres_server: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kept")  # a short name: the path of a socket has at most 107 characters
    dump, restore = section("docs/postgres.md", "Backup", "sh")
    running = Server("", folder, {})  # an empty DATABASE_URL selects the embedded database
    await running.start()
    try:
        async with Client(running.url) as api:
            chat = await api.chat(title="To be kept")
        assert len(str(folder / ".data/postgres")) <= 89, "the socket lies elsewhere, as the page says"
        shell(dump, folder)
    finally:
        await running.close()
    empty = f"{urlsplit(database_url).path[1:]}_restored"
    target = urlsplit(postgres_server)._replace(path=f"/{empty}").geturl()
    programs = dump.splitlines()[0]
    shell(f"{programs}\n$bin/psql -q -c 'CREATE DATABASE {empty}' '{postgres_server}'", folder)
    try:
        # A Postgres before version 17 rejects one parameter but restores all rows, as the page says.
        shell(f"{programs}\n{restore.strip()} 2> errors.txt || true", folder, DATABASE_URL=target)
        errors = (folder / "errors.txt").read_text(encoding="utf-8")
        assert not errors or re.search(r"(?s)parameter \"transaction_timeout\".*ignored on restore: 1$", errors.strip())
        restored = Server(target, folder, {})
        await restored.start()
        try:
            async with Client(restored.url) as api:
                assert (await api.json("GET", chat))["title"] == "To be kept"
        finally:
            await restored.close()
    finally:
        shell(f"{programs}\n$bin/psql -q -c 'DROP DATABASE {empty} WITH (FORCE)' '{postgres_server}'", folder)


def test_the_secret_of_the_webhook_is_made_as_the_page_says(tmp_path: Path) -> None:
    (command,) = section("docs/hooks.md", "The webhook", "sh")
    assert len(key_of(shell(command, tmp_path).strip())) == 32

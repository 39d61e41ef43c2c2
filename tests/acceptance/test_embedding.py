"""The programs and commands of docs/embedding.md: turnstream inside another program, alone or under a prefix."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from playwright.async_api import async_playwright, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.support.http_client import Client, said
from tests.support.pictures import PIXEL
from tests.support.programs import path_of
from tests.support.server_process import TURNSTREAM, Server, clean_environment
from turnstream import Settings, create_app
from turnstream.extensions.embedded.cluster import program
from turnstream.libraries.dialects.schemas import _UPLOAD

PAGE = (Path(__file__).parents[2] / "docs/embedding.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.timeout(180)


def blocks(heading: str, kind: str) -> list[str]:
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{kind}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def shell(commands: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{commands}"],
        cwd=folder,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Host(Server):
    """A program that mounts turnstream under a prefix."""

    def __init__(self, database_url: str, folder: Path, app: str = "host:app", **settings: str) -> None:
        super().__init__(database_url, folder, {"TURNSTREAM_ROOT_PATH": "/chat", **settings})
        self.command = (sys.executable, "-m", "uvicorn", app, "--port", str(self.port))
        self.address, self.url = self.url, f"{self.url}/chat"


@pytest.fixture
async def host(database_url: str, tmp_path: Path) -> AsyncIterator[Host]:
    (tmp_path / "host.py").write_text(blocks("Beside your own routes", "python")[0], encoding="utf-8")
    host = Host(database_url, tmp_path)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


async def test_a_program_of_its_own_serves_its_tools_and_ends_in_order(database_url: str, tmp_path: Path) -> None:
    class Program(Server):
        command = (sys.executable, "harbour.py")

    (tmp_path / "harbour.py").write_text(blocks("A server of your own", "python")[0], encoding="utf-8")
    running = Program(database_url, tmp_path, {})
    await running.start()
    try:
        async with Client(running.url) as api:
            assert [tool["name"] for tool in (await api.json("GET", "/api/tools"))["tools"]] == ["high_water"]
            turn = await api.ask(await api.chat(), '/call high_water {"port": "Dover"}')
            assert "14:07" in turn.assistant["blocks"][-1]["text"]
        assert await running.terminate() in {0, -15}  # uvicorn raises the signal again after its shutdown
    finally:
        await running.close()
    assert "Traceback" not in running.logs


async def test_a_program_knows_who_asks_by_a_function_of_its_own(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(blocks("Your own users", "python")[0], encoding="utf-8")
    running = Server(database_url, tmp_path, {})
    running.command = (sys.executable, "-m", "uvicorn", "users:app", "--port", str(running.port))
    await running.start()
    try:
        async with Client(running.url) as api:
            assert (await api.get("/api/chats")).status_code == 401
            assert (await api.get("/api/chats", headers={"Cookie": "session=5f2a"})).status_code == 200
            refused = await api.get("/api/chats", headers={"Cookie": "session=0000"})
            assert (refused.status_code, refused.json()["detail"]) == (401, "The session has ended; log in again.")
    finally:
        await running.close()


async def test_fastapi_has_it_under_a_prefix_with_tools_hooks_users_and_metrics_of_its_own(
    database_url: str, tmp_path: Path
) -> None:
    program = Path(__file__).parents[2] / "examples/fastapi/host.py"
    (tmp_path / "harbour.py").write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    running = Host(database_url, tmp_path, "harbour:host", TURNSTREAM_DB_SCHEMA="chat")
    await running.start()
    try:
        async with Client(running.address) as api:
            api.cookies.set("user", "ada")
            exchange = await api.json("POST", "/chat/api/turns", 201, json=said('/call high_water {"port": "Dover"}'))
            assert exchange["stream_url"].startswith("/chat/api/")
            events = await api.events(exchange["stream_url"])
            assert "14:07" in str(events)
            shown = ""
            while 'harbour_answers_total{user="ada"} 1.0' not in shown:  # hooks run after the last event was sent
                shown = (await api.get("/metrics")).text
            assert 'turnstream_turns_total{status="complete",stop_reason="end_turn"} 1.0' in shown
            assert "python_info" not in shown, "of the default registry come ours alone"
            assert (await api.get("/docs")).status_code == 200, "the host's own"
            api.cookies.set("user", "eve")
            assert (await api.get("/chat/api/chats")).status_code == 401
        assert await running.terminate() in {0, -15}
    finally:
        await running.close()
    assert "Traceback" not in running.logs


@pytest.mark.needs("curl")
async def test_beside_the_routes_of_a_host_all_addresses_have_the_prefix(host: Host, tmp_path: Path) -> None:
    (commands,), (printed,) = (blocks("Beside your own routes", kind) for kind in ("sh", "text"))
    assert shell(commands.replace("http://127.0.0.1:8000", host.address), tmp_path) == printed
    async with Client(host.address) as api:
        answer = await api.post("/chat/api/turns", json=said("/say Hello."))
        stream = answer.json()["stream_url"]
        assert answer.headers["location"] == stream.removesuffix("/stream")
        events = await api.events(stream)
        assert events[-1].name == "turn_complete"
        chat = await api.post("/chat/api/chats", json={})
        assert chat.headers["location"] == f"/chat/api/chats/{chat.json()['id']}"
        assert (await api.json("GET", chat.headers["location"]))["id"] == chat.json()["id"]
        assert (await api.json("GET", "/chat/openapi.json"))["servers"] == [{"url": "/chat"}]
        upload = await api.post("/chat/api/uploads", content=PIXEL)
        assert upload.headers["location"] == f"/chat/api/uploads/{upload.json()['id']}"
        await files_have_an_address_that_can_be_sent_back(api, upload.json()["id"])


async def files_have_an_address_that_can_be_sent_back(api: Client, upload: str) -> None:
    image: dict[str, Any] = {"type": "image", "source": {"type": "upload", "id": upload}}
    exchange = await api.json("POST", "/chat/api/turns", 201, json={"blocks": [*said("Look.")["blocks"], image]})
    await api.events(exchange["stream_url"])
    chat = exchange["user_turn"]["chat_id"]
    messages = (await api.json("GET", f"/chat/api/ai-sdk/chat/{chat}"))["messages"]
    (file,) = [part for part in messages[0]["parts"] if part["type"] == "file"]
    assert file["url"] == f"/chat/api/uploads/{upload}"
    # The server recognises file URLs of the SDK by one pattern, with and without the host.
    for url in (file["url"], f"https://chat.example{file['url']}", f"/api/uploads/{upload}"):
        found = _UPLOAD.fullmatch(url)
        assert found is not None
        assert found[1] == upload


@pytest.mark.needs("Chromium")
async def test_the_page_works_under_the_prefix(host: Host) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path_of("Chromium"))
        page = await browser.new_page()
        failed: list[str] = []
        page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
        await page.goto(f"{host.url}/")
        await page.locator("#words").fill("/say The tide is high.")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The tide is high.", exact=True).last).to_be_visible(timeout=60_000)
        await browser.close()
    assert failed == []


async def test_a_mounted_app_without_its_lifespan_names_the_missing_part() -> None:
    host = Starlette(routes=[Mount("/chat", create_app(Settings(_env_file=None)))])
    with TestClient(host) as client, pytest.raises(RuntimeError, match=r"enter `lifespan\(app\)`"):
        client.get("/chat/api/chats")


def test_beside_the_tables_of_a_host_it_has_a_schema_of_its_own(postgres_server: str, tmp_path: Path) -> None:
    parts = urlsplit(postgres_server)
    name = f"shop_{uuid4().hex[:8]}"
    programs = Path(program("psql")).parent
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "PGUSER": parts.username or "postgres"}
    environment["PGHOST"] = parse_qs(parts.query)["host"][0] if "host=" in parts.query else parts.hostname or ""
    environment |= {"PGPORT": str(parts.port)} if parts.port else {}
    environment |= {"PGPASSWORD": parts.password} if parts.password else {}
    (commands,), (printed,) = (blocks("Beside your own tables", kind) for kind in ("sh", "text"))
    commands = commands.replace("shop", name).replace(".venv/bin/turnstream", str(TURNSTREAM))
    try:
        assert shell(commands, tmp_path, **environment).replace(name, "shop") == printed
    finally:
        shell(f"dropdb --if-exists {name}", tmp_path, **environment)


def test_its_lines_go_through_the_logging_of_the_host(tmp_path: Path) -> None:
    (program,), (printed,) = (blocks("Logs", kind) for kind in ("python", "text"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == printed
    assert json.loads(printed.split(" ", 2)[2])["event"] == "an.event"

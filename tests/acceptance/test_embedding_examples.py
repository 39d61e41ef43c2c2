"""The folder `examples`: turnstream inside Litestar, Quart and Django, for their signed-in users."""

import sys
from pathlib import Path

import pytest

from tests.support.http_client import Client, said
from tests.support.server_process import Server

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("name", ["litestar", "quart", "django"])
async def test_a_user_of_the_host_is_an_owner_of_chats(database_url: str, tmp_path: Path, name: str) -> None:
    running = Server(
        database_url, tmp_path, {"TURNSTREAM_ROOT_PATH": "/chat", "SESSION_SECRET": "a-secret-of-the-host"}
    )
    application = ("--app-dir", str(EXAMPLES / name), "host:host")
    running.command = (sys.executable, "-m", "uvicorn", *application, "--port", str(running.port))
    address, running.url = running.url, f"{running.url}/chat"
    try:
        await running.start()
        async with Client(address) as api:
            assert (await api.get("/")).text == "The page of the host."
            assert (await api.get("/chat/api/chats")).status_code == 401
            assert (await api.post("/login", params={"user": "ada"})).status_code in {200, 201}
            exchange = await api.json("POST", "/chat/api/turns", 201, json=said("/say Hello."))
            assert exchange["stream_url"].startswith("/chat/api/")
            events = await api.events(exchange["stream_url"])
            assert (events[0].name, events[-1].name) == ("turn_start", "turn_complete")
            assert (await api.json("GET", "/chat/api/me"))["owner"] == "ada"
            assert "<title>turnstream</title>" in (await api.get("/chat/")).text
        assert await running.terminate() in {0, -15}
    finally:
        await running.close()
    assert "Traceback" not in running.logs

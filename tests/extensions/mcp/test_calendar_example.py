"""The example `calendar`: a user signs in to a calendar, and a manager approves an invitation with a link."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, office
from tests.extensions.mcp.test_sign_in import BASE, Browser, results, waiting
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.pages import ROOT
from tests.support.server_process import free_port
from turnstream.config import Settings
from turnstream.extension import selected
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.libraries.tool_sources.kinds import source_kinds
from turnstream.libraries.tool_sources.programs import ToolSettings, open_toolset
from turnstream.scripted import message_of, text, tool_use

EXAMPLE = ROOT / "examples/calendar"


def settings_of(file: Path) -> dict[str, Any]:
    lines = (line.partition("=") for line in file.read_text(encoding="utf-8").splitlines())
    return {name.removeprefix("TURNSTREAM_").lower(): value for name, _, value in lines}


@asynccontextmanager
async def delivering(secret: str, port: int) -> AsyncIterator[asyncio.StreamReader]:
    """Runs the example's receiver of webhooks as a process. Yields the process's output."""
    environment = {**os.environ, "TURNSTREAM_WEBHOOK_SECRET": secret, "PORT": str(port)}
    program, pipe = EXAMPLE / "deliver.py", asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, program, env=environment, stdout=pipe)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.extensions("mcp", "approval_links", "webhooks", "inbox")
async def test_a_person_signs_in_to_a_calendar_and_a_manager_approves_by_link(database_url: str) -> None:
    given, port = settings_of(EXAMPLE / "settings.env"), free_port()
    file = EXAMPLE / given.pop("tools_file")
    given |= {"webhook_url": f"http://127.0.0.1:{port}/", "sign_in_url": BASE, "master_key": new_master_key()}
    settings = Settings(_env_file=None, sign_in_url=BASE)
    kinds = source_kinds(settings, selected(settings))
    async with office() as place:
        environment = {"CALENDAR_URL": place.calendar.url, "CALENDAR_LIST_TOKEN": LIST_TOKEN}
        async with (
            delivering(given["webhook_secret"], port) as output,
            open_toolset([], ToolSettings(file=file, environment=environment), kinds=kinds) as toolset,
            serving(database_url, toolset, **given) as server,
            Client(server.url, None, await server.token("ada"), "ada") as ada,
            httpx2.AsyncClient(base_url=server.url, trust_env=False) as manager,
        ):
            call = message_of(tool_use("calendar__invite", {"guest": "bob"}, "a"))
            model = server.scripts.model(call, message_of(text("Bob is invited.")))
            turn = await ada.say(await ada.chat(), model=model)
            asked = await waiting(ada, turn)
            decision = {"type": "approve", "tool_use_id": "a", "input_digest": asked["input_digest"]}
            await ada.json("POST", f"{turn.url}/actions", 403, json={"actions": [decision]})

            approver, _, link = (await output.readline()).decode().strip().rpartition(": ")
            assert approver == "role:manager decides about calendar__invite"
            assert '"guest": "bob"' in (await manager.get(urlsplit(link).path)).text.replace("&quot;", '"')
            decided = await manager.post(urlsplit(link).path, data={"decision": "approve"})
            assert decided.status_code == 200

            place.issuer.subject = "ada"
            sign_in = await waiting_to_sign_in(ada, turn.stream_url)
            async with Browser(server.url) as browser:
                assert (await browser.sign_in(sign_in)).status_code == 200
            assert (await results(ada, turn))["a"] == "ada has invited bob"


async def waiting_to_sign_in(client: Client, stream: str) -> str:
    async with client.follow(stream) as events:
        async for event in events:
            calls = event.data["calls"] if event.name == "action_required" else []
            for call in calls:
                if call["type"] == "sign_in":
                    return str(call["input"]["url"])
    raise AssertionError("nobody was asked to sign in")

"""A server records turns as its settings or the turn's own request demand, and injects faults by its chaos settings."""

from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from structlog.testing import capture_logs

from tests.contracts.test_provider import stream_of
from tests.integration.plays import Play, Stage, playing
from turnstream.config import Settings
from turnstream.main import application, running
from turnstream.scripted import text
from turnstream_lab.recordings import Recordings

ANSWER = stream_of(text("It is high.")).replace(b'"stop_reason": "tool_use"', b'"stop_reason": "end_turn"')


def settings_of(database_url: str, stage: Stage, **settings: Any) -> Settings:
    given: dict[str, Any] = {
        "database_url": database_url,
        "anthropic_api_key": "sk-secret",
        "anthropic_base_url": stage.url,
    }
    return Settings(_env_file=None, openai_api_key=None, tools_file=None, **given, **settings)


async def ask(settings: Settings, stage: Stage, **options: Any) -> UUID:
    """Posts a turn, and waits for its end."""
    model = "claude-sonnet-5-5"
    stage.rehearse(model, [Play(200, ANSWER, [50], "whole", [], "end_turn")] * 9)
    app = application(settings)
    async with running(settings) as services:
        app.state.services = services
        transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": model, "tools": [], "blocks": [{"type": "text", "text": "High?"}], **options}
            posted = await client.post("/api/turns", json=body)
            assert posted.status_code == 201, posted.text
            turn = posted.json()["assistant_turn"]
            while view := services.live.directory.running(UUID(turn["id"])):
                await view.wakeup.wait()
            path = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"
            while (await client.get(path)).json()["status"] not in {"complete", "error"}:
                pass
    return UUID(turn["id"])


@pytest.mark.parametrize(
    ("turns", "options", "recorded"),
    [("all", {}, 1), ("asked", {}, 0), ("asked", {"record": True}, 1)],
)
async def test_turns_are_recorded_as_settings_and_requests_say(
    database_url: str, tmp_path: Path, turns: str, options: dict[str, bool], recorded: int
) -> None:
    async with playing() as stage:
        turn = await ask(settings_of(database_url, stage, record=tmp_path, record_turns=turns), stage, **options)
    found = Recordings(tmp_path).read(turn)
    assert [recording.body for recording in found] == [ANSWER] * recorded


async def test_a_server_that_fails_on_purpose_says_so_loudly(database_url: str) -> None:
    async with playing() as stage:
        settings = settings_of(database_url, stage, chaos=1.0, chaos_seed=3, max_retries=1)
        with capture_logs() as logs:
            await ask(settings, stage)
    (line,) = [line for line in logs if line["event"] == "model.chaos"]
    assert (line["log_level"], line["share"], line["seed"]) == ("critical", 1.0, 3)
    assert "chaos.fault" in [line["event"] for line in logs]

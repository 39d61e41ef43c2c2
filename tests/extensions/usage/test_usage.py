"""The usage and the cost of owners, as owners and operators see them."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from click.testing import CliRunner

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.openapi_document import Document
from turnstream.cli import commands
from turnstream.scripted import message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
USAGE = {"input_tokens": 100, "cache_read_input_tokens": 10, "output_tokens": 20}


async def test_an_owner_sees_the_use_of_each_day_and_model_and_chat_also_after_deletion(
    server: Server, new_owner: NewOwner
) -> None:
    ada, bob = await new_owner(), await new_owner()
    model = server.scripts.model(*(message_of(text("Hello."), usage=USAGE) for _ in range(2)))
    chat = await ada.chat()
    for words in ("One", "Two"):
        said = await ada.say(chat, words, model=model)
        async with ada.follow(f"{said.url}/stream") as events:
            async for _ in events:
                pass
    await ada.json("DELETE", chat)
    body = await ada.json("GET", "/api/usage?by=day,model,chat")
    figures = {
        "calls": 2,
        "input_tokens": 200,
        "cache_read_tokens": 20,
        "cache_write_tokens": 0,
        "output_tokens": 40,
        "cost": None,
        "unpriced": 2,
    }
    today = datetime.now(UTC).date().isoformat()
    assert body["total"] == figures
    assert body["groups"] == [{"day": today, "model": model, "chat": chat.rpartition("/")[2], "owner": None, **figures}]
    assert body["more"] is False
    assert (await bob.json("GET", "/api/usage"))["total"]["calls"] == 0
    assert (await ada.json("GET", "/api/usage?until=2020-01-01&since=2020-01-01"))["groups"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [("by=owner", "by"), ("since=soon", "since"), ("since=2026-02-01&until=2026-01-01", "until"), ("limit=0", "limit")],
)
async def test_a_question_that_cannot_be_answered_is_refused(new_owner: NewOwner, query: str, field: str) -> None:
    ada = await new_owner()
    refused = await ada.json("GET", f"/api/usage?{query}", expect=422)
    assert refused["errors"][0]["field"] == field


async def test_operators_see_the_usage_of_all_owners(
    server: Server, new_owner: NewOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await new_owner()
    model = server.scripts.model(message_of(text("Hello."), usage=USAGE))
    said = await ada.say(await ada.chat(), model=model)
    async with ada.follow(f"{said.url}/stream") as events:
        async for _ in events:
            pass
    monkeypatch.setenv("DATABASE_URL", server.database_url)

    async def usage(*options: str) -> list[list[str]]:
        result = await asyncio.to_thread(CliRunner().invoke, commands, ["usage", *options])
        assert result.exit_code == 0, result.output
        lines = [line.split("\t") for line in result.stdout.splitlines()]
        return [line for line in lines if len(line) > 1]  # the server runs in this process and logs to the same stream

    head, *rows, total = await usage()
    assert head == ["owner", "model", "calls", "input", "cache_read", "cache_write", "output", "cost"]
    assert [ada.owner, model, "1", "100", "10", "0", "20", "-"] in rows
    assert total[0] == "total"
    today = datetime.now(UTC).date().isoformat()
    _, *days, _ = await usage("--owner", ada.owner, "--by", "day", "--since", today, "--until", today)
    assert days == [[today, "1", "100", "10", "0", "20", "-"]]
    wrong = await asyncio.to_thread(CliRunner().invoke, commands, ["usage", "--by", "tool"])
    assert (wrong.exit_code, "owner" in wrong.output) == (2, True)


async def test_the_scope_of_operators_sees_other_owners_and_nobody_else_does(
    server: Server, document: Document, new_owner: NewOwner
) -> None:
    ada = await new_owner()
    model = server.scripts.model(message_of(text("Hello."), usage=USAGE))
    said = await ada.say(await ada.chat(), model=model)
    async with ada.follow(f"{said.url}/stream") as events:
        async for _ in events:
            pass
    name = f"operator {uuid4()}"
    async with Client(server.url, document, await server.token(name, "read", "admin"), name) as operator:
        of_ada = await operator.json("GET", f"/api/usage?owner={ada.owner}&by=model")
        assert [(group["model"], group["output_tokens"]) for group in of_ada["groups"]] == [(model, 20)]
        of_all = await operator.json("GET", "/api/usage?owner=*&by=owner&limit=1000")
        assert (ada.owner, 20) in [(group["owner"], group["output_tokens"]) for group in of_all["groups"]]
        assert (await operator.json("GET", "/api/usage"))["total"]["calls"] == 0
    await ada.json("GET", "/api/usage?owner=*", expect=403)

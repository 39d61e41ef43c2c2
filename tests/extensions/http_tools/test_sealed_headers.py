"""The headers of HTTP tools are encrypted in every row, and are in plain text only in the tool's HTTP request."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.extensions.http_tools.test_http_tools import Service
from tests.extensions.http_tools.test_http_tools import serving as serving_tools
from tests.integration.api.test_waiting import answer, decision, finished, until_asked
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.owner_rows import rows_of
from turnstream.domain.errors import CannotOpen
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.http_tools.request_tools import RequestToolRules
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.scripted import Reply, message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.secrets import SEALED
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

SECRET = "Bearer 5f0c-quite-a-secret"
CALL = [*message_of(tool_use("weather", {"city": "Oslo"}, "toolu_1"))]
DONE = [*message_of(text("Rain."))]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        service = await serving_tools(stack)
        service.answer("/", text="Rain.")
        yield service


def served(url: str, key: str | None) -> Any:
    return serving(url, request_tools_allow="127.0.0.1", master_key=key)


def weather(service: Service, value: str = SECRET) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    headers = {"authorization": value}
    return {
        "type": "http",
        "name": "weather",
        "description": "Outside.",
        "input_schema": schema,
        "url": service.url(),
        "headers": headers,
    }


async def ended(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """Posts a message and waits for the end of the turn. Returns the chat and the turn."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 201, answer.text
    turn = answer.json()["assistant_turn"]
    chat, id = turn["chat_id"], turn["id"]
    async with client.stream("GET", answer.json()["stream_url"]) as events:
        async for _ in events.aiter_bytes():
            pass
    return chat, id


def message(server: Server, *replies: Reply, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": "How is it?"}]
    return {"blocks": blocks, "model": server.scripts.model(*replies), **more}


async def client_of(server: Server) -> httpx2.AsyncClient:
    token = await server.token("ada")
    return httpx2.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=150)


def sent(service: Service) -> list[str]:
    return [headers["authorization"] for _, _, headers, _ in service.requests]


async def test_no_row_has_a_secret_and_every_call_does(database_url: str, service: Service) -> None:
    async with served(database_url, new_master_key()) as server, await client_of(server) as client:
        chat, turn = await ended(client, "/api/turns", message(server, CALL, DONE, tools=[weather(service)]))
        await ended(
            client, f"/api/chats/{chat}/turns", message(server, CALL, DONE)
        )  # the turn inherits the tools of the previous turn
        again = {"model": server.scripts.model(CALL, DONE)}
        await ended(client, f"/api/chats/{chat}/turns/{turn}/regenerate", again)
        changed = await client.patch(f"/api/chats/{chat}", json={"settings": {"tools": [weather(service)]}})
        tools = changed.json()["settings"]["tools"]
        assert tools[0]["headers"] == {"authorization": "********"}
        # the client sends the masked header back
        kept = await client.patch(f"/api/chats/{chat}", json={"settings": {"tools": tools}})
        assert kept.status_code == 200
        await ended(client, f"/api/chats/{chat}/turns", message(server, CALL, DONE))
        of_chat = {"settings": {"tools": [weather(service)]}}
        await ended(client, "/api/turns", message(server, CALL, DONE, chat=of_chat))
        browser = await client.post("/api/tokens", json={"fixed": {"tools": [weather(service)]}})
        assert browser.status_code < 300, browser.text
        fixed = {"authorization": f"Bearer {browser.json()['token']}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=fixed, timeout=150) as page:
            await ended(page, "/api/turns", message(server, CALL, DONE))
    assert sent(service) == [SECRET] * 6
    dump = json.dumps(await rows_of(database_url))
    assert "quite-a-secret" not in dump
    assert SEALED in dump


async def test_a_secret_from_before_the_encryption_is_sent(database_url: str, service: Service) -> None:
    async with served(database_url, None) as server, await client_of(server) as client:
        chat, _ = await ended(client, "/api/turns", message(server, CALL, DONE, tools=[weather(service)]))
    async with served(database_url, new_master_key()) as server, await client_of(server) as client:
        await ended(client, f"/api/chats/{chat}/turns", message(server, CALL, DONE))
    assert sent(service) == [SECRET] * 2


async def test_a_server_without_the_master_key_calls_nobody(database_url: str, service: Service) -> None:
    async with served(database_url, new_master_key()) as server, await client_of(server) as client:
        chat, _ = await ended(client, "/api/turns", message(server, CALL, DONE, tools=[weather(service)]))
    for key in (None, new_master_key()):
        async with served(database_url, key) as server, await client_of(server) as client:
            _, turn = await ended(client, f"/api/chats/{chat}/turns", message(server, CALL, DONE))
            shown = await client.get(f"/api/chats/{chat}/turns/{turn}")
            assert "cannot be decrypted" in shown.text
    assert sent(service) == [SECRET]


async def test_while_a_replica_has_no_master_key_the_secret_is_plain_and_both_send_it(
    database_url: str, service: Service
) -> None:
    """Simulates a rollout in which only one of two replicas has the master key."""
    async with (
        served(database_url, new_master_key()) as one,
        served(database_url, None) as other,
        await client_of(one) as client,
    ):
        chat, _ = await ended(client, "/api/turns", message(one, CALL, DONE, tools=[weather(service)]))
        async with httpx2.AsyncClient(base_url=other.url, headers=client.headers, timeout=150) as elsewhere:
            await ended(elsewhere, f"/api/chats/{chat}/turns", message(other, CALL, DONE))
    assert sent(service) == [SECRET] * 2
    assert SEALED not in json.dumps(await rows_of(database_url))


async def test_a_grant_holds_when_the_headers_of_its_tool_are_encrypted(
    database_url: str, service: Service, document: Document
) -> None:
    allowed = Allowed.of(["127.0.0.1"])
    async with HttpTools(Allowed(), request_tools=RequestToolRules(allowed)) as http:

        def asked_about(spec: ToolSpec) -> Tool:
            return replace(http.request_tool(spec), policy=Policy(approval="always"))

        body, url = {"tools": [weather(service)]}, "/api/chats"
        for key, asks in ((None, True), (new_master_key(), False)):
            toolset = Toolset([], declared=asked_about)
            async with (
                serving(database_url, toolset, master_key=key) as server,
                Client(server.url, document, await server.token("ada")) as client,
            ):
                if asks:
                    url = await client.chat()
                turn = await client.say(url, **message(server, CALL, DONE, **body))
                if asks:
                    (call,) = (await until_asked(client, turn)).data["calls"]
                    await answer(client, turn, decision("approve", call, remember={"scope": "chat"}))
                shown = await finished(client, turn)
            (result,) = (block for block in shown["blocks"] if block["type"] == "tool_result")
            assert result["notes"]["approval"]["decision"] == ("approve" if asks else "remembered")
    assert sent(service) == [SECRET] * 2
    assert SEALED in json.dumps(await rows_of(database_url))


@pytest.mark.parametrize("value", [f"{SEALED}AAAA", f"{SEALED}"])
async def test_a_value_that_looks_sealed_is_refused(database_url: str, service: Service, value: str) -> None:
    async with served(database_url, new_master_key()) as server, await client_of(server) as client:
        answer = await client.post("/api/turns", json=message(server, CALL, tools=[weather(service, value)]))
        assert answer.status_code == 422
        assert "tools.0.headers" in answer.text


async def test_a_wrong_header_is_refused_before_it_is_sealed(database_url: str, service: Service) -> None:
    async with served(database_url, new_master_key()) as server, await client_of(server) as client:
        answer = await client.post("/api/turns", json=message(server, CALL, tools=[weather(service, "a\r\nb: c")]))
        assert answer.status_code == 422
        assert "line break" in answer.text


async def test_after_an_erasure_a_copy_of_the_rows_reveals_nothing(database_url: str, service: Service) -> None:
    master = new_master_key()
    async with served(database_url, master) as server, await client_of(server) as client:
        await ended(client, "/api/turns", message(server, CALL, DONE, tools=[weather(service)]))
        connection = await asyncpg.connect(database_url)
        (stored,) = await connection.fetch(
            "SELECT request::text || coalesce(tools::text, '') AS text FROM turns"
            " LEFT JOIN tool_sets ON digest = tool_set WHERE role = 'assistant'"
        )
        await connection.close()
        value = stored["text"][stored["text"].index(SEALED) :].split('"')[0]
        database = server.services.storage.database
        keys = OwnerKeys(database, MasterKeys.read(master))
        before = await keys.opened_headers("ada", service.url(), {"authorization": value})
        assert before == {"authorization": SECRET}
        await keys.find_or_create("bob")
        async for _ in Owners(database).erase("ada"):
            pass
        for owner in ("ada", "bob"):
            with pytest.raises(CannotOpen):
                await keys.opened_headers(owner, service.url(), {"authorization": value})

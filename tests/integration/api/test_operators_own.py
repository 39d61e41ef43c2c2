"""Which of the operator's resources turns may use: secrets, the account at a provider, models, tokens, recordings."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from turnstream.domain.secret_headers import MASK
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def strict(database_url: str, **settings: Any) -> AsyncIterator[tuple[Server, Client]]:
    async with AsyncExitStack() as stack:
        provider = ScriptedProvider(lambda _: message_of(text("Yes.")))
        offers = [ProviderModels(provider, ["small", "large"])]
        server = await stack.enter_async_context(serving(database_url, offers=offers, **settings))
        yield server, await stack.enter_async_context(Client(server.url))


def crm(**headers: str) -> dict[str, Any]:
    schema = {"type": "object"}
    return {
        "type": "http",
        "name": "crm",
        "description": "Looks up a customer.",
        "input_schema": schema,
        "url": "https://crm.example.com/",
        "headers": headers,
    }


def field_of(refused: Any) -> str:
    field: str = refused["errors"][0]["field"]
    return field


@pytest.mark.extensions("http_tools")
async def test_headers_of_tools_are_masked_wherever_a_chat_is_shown(api: Client, server: Server) -> None:
    made = await api.post("/api/chats", json={"settings": {"tools": [crm(Authorization="Bearer tok-123456", x="y")]}})
    id = made.json()["id"]
    chat = f"/api/chats/{id}"
    assert made.json()["settings"]["tools"][0]["headers"] == {"Authorization": MASK, "x": MASK}
    await api.ask(chat)
    shown = [
        made.text,
        (await api.get(chat)).text,
        (await api.get("/api/chats")).text,
        (await api.get(f"{chat}/turns")).text,
        (await api.patch(chat, json={"title": "New"})).text,
    ]
    async with api.follow(f"{chat}/stream") as events:
        async for event in events:
            shown.append(str(event.data))
            if event.name == "turn_complete":
                break
    assert not [each for each in shown if "tok-123456" in each]
    stored = await server.services.storage.chats.get(api.owner, UUID(id))
    assert stored.settings["tools"][0]["headers"] == {"Authorization": "Bearer tok-123456", "x": "y"}


@pytest.mark.extensions("http_tools")
async def test_a_mask_that_is_sent_back_keeps_the_value_for_the_same_address_alone(api: Client, server: Server) -> None:
    chat = await api.chat(settings={"tools": [crm(Authorization="Bearer tok-123456")]})
    id = UUID(chat.rpartition("/")[2])
    await api.json("PATCH", chat, json={"settings": {"tools": [crm(Authorization=MASK, x="new")]}})
    stored = await server.services.storage.chats.get(api.owner, id)
    assert stored.settings["tools"][0]["headers"] == {"Authorization": "Bearer tok-123456", "x": "new"}
    elsewhere = {**crm(Authorization=MASK), "url": "https://crm.example.com.evil.example/"}
    for tools in ([elsewhere], [crm(Other=MASK)], [{**crm(Authorization=MASK), "name": "other"}]):
        refused = await api.json("PATCH", chat, 422, json={"settings": {"tools": tools}})
        assert field_of(refused).startswith("settings.tools.0.headers.")
        refused = await api.json("POST", f"{chat}/turns", 422, json={**said("x"), "tools": tools})
        assert field_of(refused).startswith("tools.0.headers.")
    turn = await api.ask(chat, tools=[crm(Authorization=MASK)])
    kept = await server.services.storage.turns.get(api.owner, id, UUID(turn.assistant["id"]))
    assert kept.request is not None
    assert kept.request.tools[0].http is not None
    assert kept.request.tools[0].http.headers == {"Authorization": "Bearer tok-123456"}
    refused = await api.json("POST", f"{turn.url}/regenerate", 422, json={"tools": [crm(Authorization=MASK)]})
    assert field_of(refused) == "tools.0.headers.Authorization"


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "mcp", "server_url": "https://example.com", "authorization": "x"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "web_search", "filters": [{"vector_store_ids": ["vs_1"]}]},
        {"type": ["web_search"]},
        {"file_ids": ["file_1"]},
    ],
)
async def test_parameters_that_access_the_account_of_the_operator_need_permission(api: Client, definition: Any) -> None:
    body = {**said("x"), "tools": [{"type": "provider", "definition": definition}]}
    assert field_of(await api.json("POST", "/api/turns", 422, json=body)) == "tools.0.definition.type"
    tools = {"settings": {"tools": body["tools"]}}
    assert field_of(await api.json("POST", "/api/chats", 422, json=tools)) == "settings.tools.0.definition.type"


async def test_settings_are_ceilings_for_requests_of_turns(database_url: str) -> None:
    ceilings = {"max_rounds": 4, "max_tokens": 1000}
    async with strict(database_url, **ceilings, models_allow="sm*, plain") as (_, client):
        chat = await client.chat()
        limits = {"limits": {"max_rounds": 5}}
        refused = await client.json("POST", "/api/turns", 422, json={**said("x"), **limits})
        assert field_of(refused) == "limits.max_rounds"
        refused = await client.json("PATCH", chat, 422, json={"settings": limits})
        assert field_of(refused) == "settings.limits.max_rounds"
        await client.json("PATCH", chat, json={"settings": {"limits": {"max_rounds": 4}}})
        for params, field in (
            ({"max_tokens": 1001}, "params.max_tokens"),
            ({"thinking": {"type": "enabled", "budget_tokens": 1001}}, "params.thinking.budget_tokens"),
        ):
            assert field_of(await client.json("POST", "/api/turns", 422, json={**said("x"), "params": params})) == field
        output = {"schema": {"type": "object"}, "max_attempts": 3, "max_iterations": 67}
        refused = await client.json("POST", "/api/turns", 422, json={**said("x"), "output": output})
        assert field_of(refused) == "output.max_attempts"
        refused = await client.json("POST", "/api/turns", 422, json={**said("x"), "model": "large"})
        assert field_of(refused) == "model"
        refused = await client.json("PATCH", chat, 422, json={"settings": {"model": "large"}})
        assert field_of(refused) == "settings.model"
        listed = [model["id"] for model in (await client.json("GET", "/api/models"))["models"]]
        assert sorted(listed) == ["plain", "small"]
        turn = await client.ask(chat, model="small", params={"max_tokens": 1000})
        assert (await client.json("GET", turn.url))["status"] == "complete"


async def test_a_server_without_its_own_ceiling_accepts_the_maximum_of_the_api(api: Client) -> None:
    await api.ask(await api.chat(), limits={"max_rounds": 100, "max_recoveries": 100})


@pytest.mark.extensions("lab")
async def test_a_recording_needs_leave(database_url: str, tmp_path: Path) -> None:
    recorded = {"record": tmp_path, "record_turns": "asked", "record_owners": "ada"}
    async with strict(database_url, **recorded) as (server, _), AsyncExitStack() as stack:
        for name, status in (("ada", 201), ("bob", 422)):
            token = await server.token(name)
            client = await stack.enter_async_context(Client(server.url, None, token, name))
            turn = await client.ask(await client.chat())
            for path, body in (
                ("/api/turns", {**said("x"), "record": True}),
                (f"{await client.chat()}/turns", {**said("x"), "record": True}),
                (f"{turn.url}/regenerate", {"record": True}),
            ):
                answered = await client.post(path, json=body)
                assert answered.status_code == status
                assert status == 201 or field_of(answered.json()) == "record"

"""Credentials in the definitions of provider tools are encrypted in every row, masked in answers, and plain in model
calls.
"""

import json
from typing import Any

import msgspec
import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.owner_rows import rows_of
from turnstream.domain.secret_headers import MASK
from turnstream.libraries.providers.anthropic.parameters import PARAMETERS as OF_ANTHROPIC
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.parameters import COMMON
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.tools.secrets import SEALED

WORDS = ("quite-a-secret", "another-secret", "third-secret")
MCP = {
    "type": "mcp",
    "server_label": "crm",
    "server_url": "https://crm.test/mcp",
    "authorization": f"Bearer {WORDS[0]}",
    "headers": {"x-key": WORDS[1]},
}
SERVERS = [{"type": "url", "url": "https://crm.test/mcp", "name": "crm", "authorization_token": WORDS[2]}]
TOOLS = [{"type": "provider", "definition": MCP}]
MASKED = {**MCP, "authorization": MASK, "headers": {"x-key": MASK}}


PARAMETERS = (*COMMON, *(each for each in OF_ANTHROPIC if each.name == "mcp_servers"))


def provider_of_model() -> ScriptedProvider:
    return ScriptedProvider(lambda _: message_of(text("Fine.")))


def served(url: str, key: str | None, provider: ScriptedProvider) -> Any:
    offers = [ProviderModels(provider, ["m"], (), PARAMETERS)]
    return serving(url, offers=offers, master_key=key, provider_tools_allow="mcp", params_allow="mcp_servers")


def said(**more: Any) -> dict[str, Any]:
    return {"blocks": [{"type": "text", "text": "How is it?"}], "model": "m", **more}


def is_plain(request: ModelRequest) -> bool:
    return [msgspec.json.decode(each) for each in request.provider_tools] == [MCP] and (
        request.params.get("mcp_servers") == SERVERS
    )


async def client_of(server: Server, document: Document) -> Client:
    return Client(server.url, document, await server.token("ada"))


async def test_no_row_has_a_credential_and_every_model_call_does(database_url: str, document: Document) -> None:
    provider = provider_of_model()
    async with served(database_url, new_master_key(), provider) as server, await client_of(server, document) as client:
        options = {"tools": TOOLS, "params": {"mcp_servers": SERVERS}}
        chat = await client.chat()
        turn = await client.ask(chat, **said(**options))
        await client.ask(chat, **said(params=options["params"]))  # the turn inherits the tools of the previous turn
        again = await client.json("POST", f"{turn.url}/regenerate", 201, json={})
        await client.events(again["stream_url"])
        other = await client.json("POST", "/api/chats", 201, json={"settings": {"model": "m", **options}})
        url = f"/api/chats/{other['id']}"
        assert other["settings"]["tools"][0]["definition"] == MASKED
        assert other["settings"]["params"]["mcp_servers"][0]["authorization_token"] == MASK
        await client.ask(url, **said())
        shown = {name: other["settings"][name] for name in ("tools", "params")}
        await client.json("PATCH", url, json={"settings": shown})  # the client sends the masked credentials back
        await client.ask(url, **said())
        await client.ask(url, **said(**shown))
    assert [is_plain(request) for request in provider.requests] == [True] * 6
    dump = json.dumps(await rows_of(database_url))
    assert [word for word in WORDS if word in dump] == []
    assert SEALED in dump


async def test_of_two_tools_at_one_server_each_keeps_its_credential(database_url: str, document: Document) -> None:
    provider = provider_of_model()
    other = {**MCP, "server_label": "mail", "authorization": "Bearer another"}
    tools = [*TOOLS, {"type": "provider", "definition": other}]
    async with served(database_url, new_master_key(), provider) as server, await client_of(server, document) as client:
        chat = await client.json("POST", "/api/chats", 201, json={"settings": {"tools": tools}})
        url = f"/api/chats/{chat['id']}"
        await client.json("PATCH", url, json={"settings": {"tools": chat["settings"]["tools"]}})
        await client.ask(url, **said())
    (request,) = provider.requests
    assert [msgspec.json.decode(each) for each in request.provider_tools] == [MCP, other]


async def test_a_mask_for_another_server_is_refused(database_url: str, document: Document) -> None:
    provider = provider_of_model()
    async with served(database_url, new_master_key(), provider) as server, await client_of(server, document) as client:
        chat = await client.json("POST", "/api/chats", 201, json={"settings": {"tools": TOOLS}})
        elsewhere = [{"type": "provider", "definition": {**MASKED, "server_url": "https://evil.test/"}}]
        refused = await client.json("PATCH", f"/api/chats/{chat['id']}", 422, json={"settings": {"tools": elsewhere}})
        assert refused["errors"][0]["field"] == "settings.tools.0.definition.authorization"
        servers = [{**SERVERS[0], "authorization_token": MASK}]
        refused = await client.json("POST", "/api/turns", 422, json=said(params={"mcp_servers": servers}))
        assert refused["errors"][0]["field"] == "params.mcp_servers.0.authorization_token"


@pytest.mark.parametrize("other", [None, new_master_key()], ids=["no key", "another key"])
async def test_without_the_key_no_model_is_called(database_url: str, document: Document, other: str | None) -> None:
    provider = provider_of_model()
    async with served(database_url, new_master_key(), provider) as server, await client_of(server, document) as client:
        chat = await client.json("POST", "/api/chats", 201, json={"settings": {"tools": TOOLS}})
    async with served(database_url, other, provider) as server, await client_of(server, document) as client:
        turn = await client.ask(f"/api/chats/{chat['id']}", **said())
        shown = await client.json("GET", turn.url)
    assert provider.requests == []
    assert shown["error"]["type"] == "secrets_locked"
    assert "cannot be decrypted" in shown["error"]["message"]

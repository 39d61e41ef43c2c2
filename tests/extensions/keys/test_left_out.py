"""A server without the extension refuses secrets in requests. It keeps secrets that are already encrypted, but sends
none of them.
"""

from typing import Any

import pytest

from tests.extensions.http_tools.test_http_tools import Service
from tests.extensions.http_tools.test_sealed_headers import CALL, DONE, SECRET, ended, message, sent, service, weather
from tests.extensions.http_tools.test_sealed_headers import client_of as client_of_tools
from tests.extensions.keys.test_sealed_credentials import MASKED, PARAMETERS, SERVERS, TOOLS, client_of, is_plain, said
from tests.extensions.keys.test_sealed_credentials import provider_of_model as provider
from tests.support.http_server import serving
from tests.support.openapi_document import Document
from tests.support.owner_rows import rows_of
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.secret_headers import MASK
from turnstream.extension import installed, secrets_of
from turnstream.extensions.keys import EXTENSION as KEYS
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider

__all__ = ["service"]  # a fixture

OTHERS = [each for each in installed().values() if each.name not in {"keys", "encryption", "embedded"}]
REFUSED = "must have no secrets: this server lacks the extension `keys`"


def served(url: str, key: str | None, model: ScriptedProvider) -> Any:
    """Runs a server, with the extension only if `key` is set."""
    return serving(
        url,
        offers=[ProviderModels(model, ["m"], (), PARAMETERS)],
        extensions=OTHERS if key is None else [*OTHERS, KEYS],
        provider_tools_allow="mcp",
        params_allow="mcp_servers",
        request_tools_allow="127.0.0.1",
        master_key=key,
    )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": TOOLS}, "tools.0"),
        ({"tools": [{"type": "provider", "definition": MASKED}]}, "tools.0"),
        ({"params": {"mcp_servers": SERVERS}}, "params.mcp_servers"),
        ({"params": {"mcp_servers": [{**SERVERS[0], "authorization_token": MASK}]}}, "params.mcp_servers"),
    ],
    ids=["secret", "mask", "secret of a parameter", "mask of a parameter"],
)
async def test_requests_with_secrets_are_refused_and_nothing_is_stored(
    database_url: str, document: Document, options: dict[str, Any], field: str
) -> None:
    async with served(database_url, None, provider()) as server, await client_of(server, document) as client:
        before = await client.json("POST", "/api/chats", 201, json={})
        url = f"/api/chats/{before['id']}"
        for method, path, body, place in (
            ("POST", "/api/chats", {"settings": {"model": "m", **options}}, "settings."),
            ("PATCH", url, {"settings": {"model": "m", **options}}, "settings."),
            ("POST", f"{url}/turns", said(**options), ""),
            ("POST", "/api/turns", said(**options), ""),
            ("POST", "/api/turns", said(chat={"settings": options}), "chat.settings."),
            ("POST", "/api/tokens", {"fixed": options}, "fixed."),
        ):
            refused = await client.json(method, path, 422, json=body)
            assert [each["field"] for each in refused["errors"]] == [f"{place}{field}"]
            assert REFUSED in refused["detail"]
        assert (await client.json("GET", url))["settings"] == {}
    rows = await rows_of(database_url)
    assert [row for row in rows if "crm.test" in str(row)] == []


async def test_a_trigger_and_a_new_secret_of_one_are_refused_and_nothing_is_stored(
    database_url: str, document: Document
) -> None:
    trigger = {"name": "reports", "request": {"blocks": [{"type": "text", "text": "Read it."}]}}
    async with (
        served(database_url, new_master_key(), provider()) as server,
        await client_of(server, document) as client,
    ):
        before = await client.json("POST", "/api/triggers", 201, json=trigger)
    stored = (await rows_of(database_url))["schedules"]
    async with served(database_url, None, provider()) as server, await client_of(server, document) as client:
        for path, body in (("/api/triggers", trigger), (f"{before['path']}/secrets", {})):
            refused = await client.json("POST", path, 422, json=body)
            assert "lacks the extension `keys`" in refused["detail"]
    assert (await rows_of(database_url))["schedules"] == stored


async def test_the_header_of_an_http_tool_is_refused_and_the_name_of_a_secret_is_not(
    database_url: str, service: Service
) -> None:
    async with served(database_url, None, provider()) as server, await client_of_tools(server) as client:
        answer = await client.post("/api/turns", json=message(server, CALL, DONE, tools=[weather(service)]))
        assert answer.status_code == 422
        assert REFUSED in answer.text
        tools = [{**weather(service), "headers": {}}]
        answer = await client.post("/api/turns", json=message(server, CALL, DONE, tools=tools))
        assert answer.status_code == 201
        answer = await client.post("/api/turns", json=message(server, tools=[weather(service, "${secret:KEY}")]))
        assert REFUSED not in answer.text


async def test_encrypted_credentials_stay_in_rows_and_no_model_is_called(database_url: str, document: Document) -> None:
    key, model = new_master_key(), provider()
    options = {"model": "m", "tools": TOOLS, "params": {"mcp_servers": SERVERS}}
    async with served(database_url, key, model) as server, await client_of(server, document) as client:
        url = f"/api/chats/{(await client.json('POST', '/api/chats', 201, json={'settings': options}))['id']}"
    async with served(database_url, None, model) as server, await client_of(server, document) as client:
        shown = await client.json("PATCH", url, json={"settings": {"params": {"max_tokens": 9}}})
        assert shown["settings"]["tools"][0]["definition"] == MASKED
        assert shown["settings"]["params"]["mcp_servers"][0]["authorization_token"] == MASK
        turn = await client.json("GET", (await client.ask(url, **said())).url)
        assert turn["error"]["type"] == "secrets_locked"
    assert model.requests == []
    async with served(database_url, key, model) as server, await client_of(server, document) as client:
        await client.ask(url, **said())
    assert [is_plain(request) for request in model.requests] == [True]


async def test_an_encrypted_header_is_sent_to_nobody_until_the_extension_is_back(
    database_url: str, service: Service
) -> None:
    key, path = new_master_key(), "/api/turns"
    more: dict[str, Any] = {"chat": {"settings": {"tools": [weather(service)]}}}
    for each in (key, None, key):
        async with served(database_url, each, provider()) as server, await client_of_tools(server) as client:
            chat, turn = await ended(client, path, message(server, CALL, DONE, **more))
            blocks = (await client.get(f"/api/chats/{chat}/turns/{turn}")).json()["blocks"]
            locked = [block for block in blocks if "cannot be decrypted" in str(block)]
            assert bool(locked) == (each is None)
        path, more = f"/api/chats/{chat}/turns", {}
    assert sent(service) == [SECRET] * 2


def test_a_codec_needs_the_extension() -> None:
    encryption = installed()["encryption"]
    with pytest.raises(ConfigError, match="The extension encryption needs the extension keys"):
        secrets_of(Settings(_env_file=None, database_url="postgresql://x"), [encryption])

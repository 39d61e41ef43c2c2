"""The waiting time that a provider demands: from the provider's response to the errors that the SDKs raise."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.types.responses import ResponseFailedEvent

from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.model_apis import providers_of
from turnstream.libraries.providers.connect import connect_providers

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.extensions("anthropic_api", "openai", "ag_ui", "ai_sdk"),
]

FILE = """
[providers.asked]
api = "{api}"
base_url = "{url}"
key = "$KEY"

[models.small]
provider = "asked"
prefill = true
"""
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def failed(status: int, wait: str | None, type: str = "rate_limit_error") -> Answer:
    headers = {"content-type": "application/json"} | ({"retry-after": wait} if wait else {})
    body = {"type": "error", "error": {"type": type, "message": "Later."}}
    return Answer(json.dumps(body).encode(), status, headers)


@asynccontextmanager
async def asked(
    database_url: str, folder: Path, api: str
) -> AsyncIterator[tuple[CannedServer, AsyncOpenAI, AsyncAnthropic, Client]]:
    """Runs a provider, and a server that waits at most a minute for it. Yields the provider and clients."""
    async with canned_server() as provider:
        file = folder / "models.toml"
        file.write_text(FILE.format(api=api, url=provider.url))
        specs = [spec for spec in providers_of(file, {"KEY": "a key"}) if spec.name == "asked"]
        async with connect_providers(specs) as offers, serving(database_url, offers=offers) as server:
            token = await server.token("ada")
            async with (
                AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token) as client,
                AsyncAnthropic(base_url=server.url, api_key=token) as claude,
                Client(server.url, token=token) as native,
            ):
                yield provider, client, claude, native


@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
async def test_the_wait_that_a_provider_asks_for_reaches_the_clients(
    database_url: str, tmp_path: Path, api: str
) -> None:
    async with asked(database_url, tmp_path, api) as (provider, client, claude, native):
        provider.answer = failed(429, "90")
        with pytest.raises(openai.RateLimitError) as chat:
            await client.chat.completions.create(model="small", messages=MESSAGES)
        assert 80 <= int(chat.value.response.headers["retry-after"]) <= 90
        with pytest.raises(anthropic.RateLimitError) as message:
            await claude.messages.create(model="small", max_tokens=9, messages=MESSAGES)
        assert 80 <= int(message.value.response.headers["retry-after"]) <= 90
        assert len(provider.requests) == 2  # no client has retried before the end of the waiting time
        chats = (await native.json("GET", "/api/chats"))["chats"]
        turns = (await native.json("GET", f"/api/chats/{chats[0]['id']}/turns"))["turns"]
        assert turns[-1]["error"]["details"] == {"retry_after": 90}


async def test_the_wait_is_in_the_error_of_each_stream(database_url: str, tmp_path: Path) -> None:
    async with asked(database_url, tmp_path, "openai-chat") as (provider, client, claude, native):
        provider.answer = failed(429, "90")
        stream = await client.responses.create(model="small", input="Hi", stream=True)
        last = [event async for event in stream][-1]
        assert isinstance(last, ResponseFailedEvent)
        kept = await client.responses.retrieve(last.response.id)
        for response in (last.response, kept):
            assert response.error is not None
            assert (response.error.code, response.error.to_dict()["retry_after"]) == ("rate_limit_exceeded", 90)
        with pytest.raises(openai.APIError) as chat:
            async for _ in await client.chat.completions.create(model="small", messages=MESSAGES, stream=True):
                pass
        assert chat.value.body is not None
        assert chat.value.body["retry_after"] == 90  # type: ignore[index]
        with pytest.raises(anthropic.APIStatusError) as message:
            async with claude.messages.stream(model="small", max_tokens=9, messages=MESSAGES) as written:
                await written.until_done()
        assert message.value.body["error"]["retry_after"] == 90  # type: ignore[index]
        user = {"id": "m", "role": "user"}
        options = {"turnstream": {"model": "small"}}
        ui = {"id": "c", "messages": [{**user, "parts": [{"type": "text", "text": "Hi"}]}], **options}
        run = {"threadId": "t", "runId": "r", "messages": [{**user, "content": "Hi"}], "forwardedProps": options}
        for path, body in (("/api/ai-sdk/chat", ui), ("/api/ag-ui", run)):
            answer = await native.post(path, json=body)
            assert answer.status_code == 200
            assert re.search(r'"retry_after":90(\.0)?[,}]', answer.text), answer.text


@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
async def test_the_beginning_of_an_answer_is_the_last_that_its_provider_gets(
    database_url: str, tmp_path: Path, api: str
) -> None:
    async with asked(database_url, tmp_path, api) as (provider, client, claude, _):
        provider.answer = failed(400, None, "invalid_request_error")
        begun: Any = [*MESSAGES, {"role": "assistant", "content": "It is"}]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="small", messages=begun)
        with pytest.raises(anthropic.BadRequestError):
            await claude.messages.create(model="small", max_tokens=9, messages=begun)
        for request in provider.requests:
            *_, said, last = json.loads(request.body)["messages"]
            assert (said["role"], last["role"]) == ("user", "assistant")
            assert "It is" in json.dumps(last["content"])


@pytest.mark.parametrize(("status", "type"), [(503, "overloaded_error"), (529, "overloaded_error")])
async def test_so_does_that_of_an_overload(database_url: str, tmp_path: Path, status: int, type: str) -> None:
    async with asked(database_url, tmp_path, "anthropic") as (provider, client, claude, _):
        provider.answer = failed(status, "90", type)
        with pytest.raises(openai.InternalServerError) as chat:
            await client.chat.completions.create(model="small", messages=MESSAGES)
        assert (chat.value.status_code, "retry-after" in chat.value.response.headers) == (503, True)
        with pytest.raises(anthropic.APIStatusError) as message:
            await claude.messages.create(model="small", max_tokens=9, messages=MESSAGES)
        assert (message.value.status_code, "retry-after" in message.value.response.headers) == (529, True)


async def test_without_a_wait_of_the_provider_none_is_made_up(database_url: str, tmp_path: Path) -> None:
    async with asked(database_url, tmp_path, "anthropic") as (provider, client, claude, _):
        provider.answer = failed(400, None, "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as chat:
            await client.chat.completions.create(model="small", messages=MESSAGES)
        assert "retry-after" not in chat.value.response.headers
        with pytest.raises(anthropic.BadRequestError) as message:
            await claude.messages.create(model="small", max_tokens=9, messages=MESSAGES)
        assert "retry-after" not in message.value.response.headers

"""Embeddings through the package `openai`. The client, the server and the provider communicate over real sockets."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.model_apis import providers_of
from turnstream.domain.plans import Plan
from turnstream.libraries.providers.connect import connect_providers

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"content-type": "application/json"}
FILE = """
[providers.vectors]
api = "openai-embeddings"
base_url = "{url}/v1/"
key = "$VECTORS_KEY"
headers = {{ X-Team = "ships" }}

[models.vectors-small]
provider = "vectors"
upstream = "text-embedding-3-small"
aliases = ["small"]
prices = {{ input = 2.0, output = 0.0 }}
"""


def answer(*vectors: list[float]) -> Answer:
    data = [
        {"object": "embedding", "index": place, "embedding": b64encode(pack(f"<{len(vector)}f", *vector)).decode()}
        for place, vector in enumerate(vectors)
    ]
    body = {"object": "list", "data": data, "model": "theirs", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    return Answer(json.dumps(body).encode(), headers=JSON)


def failure(status: int, **error: Any) -> Answer:
    return Answer(json.dumps({"error": error}).encode(), status, JSON)


@asynccontextmanager
async def vectors(
    database_url: str, tmp_path: Path, plans: Mapping[str, Plan] | None = None
) -> AsyncIterator[tuple[CannedServer, AsyncOpenAI]]:
    """Runs a provider and a server that uses it. Yields the provider and a client of the server."""
    async with canned_server() as provider:
        file = tmp_path / "models.toml"
        file.write_text(FILE.format(url=provider.url))
        specs = [spec for spec in providers_of(file, {"VECTORS_KEY": "a key"}) if spec.name == "vectors"]
        async with (
            connect_providers(specs) as offers,
            serving(database_url, offers=offers, plan_of=(plans or {}).get) as server,
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key=await server.token("ada"), max_retries=0) as client,
        ):
            yield provider, client


async def test_embeddings_are_those_of_the_provider(database_url: str, tmp_path: Path) -> None:
    async with vectors(database_url, tmp_path) as (provider, client):
        provider.answer = answer([0.5, 1.0], [0.25, 2.0])
        made = await client.embeddings.create(model="small", input=["The sea", "A ship"], dimensions=2)
        assert [each.embedding for each in made.data] == [[0.5, 1.0], [0.25, 2.0]]
        assert (made.model, made.usage.total_tokens) == ("theirs", 3)
        (asked,) = provider.requests
        assert asked.target == "/v1/embeddings"
        assert (asked.headers["authorization"], asked.headers["x-team"]) == ("Bearer a key", "ships")
        assert json.loads(asked.body) == {
            "model": "text-embedding-3-small",
            "input": ["The sea", "A ship"],
            "dimensions": 2,
            "encoding_format": "base64",
        }
        assert "vectors-small" in [model.id async for model in client.models.list()]


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (failure(400, message="Too long.", type="invalid_request_error"), openai.BadRequestError),
        (failure(401, message="Wrong key.", code="invalid_api_key"), openai.InternalServerError),
        (failure(429, message="Slow down.", type="rate_limit_error"), openai.RateLimitError),
        (failure(500, message="Broken."), openai.InternalServerError),
        (Answer(b"<html>", 502, {"content-type": "text/html"}), openai.InternalServerError),
        (Answer(b'{"object"', headers=JSON, ending="reset"), openai.InternalServerError),
    ],
)
async def test_a_failure_of_the_provider_is_an_error_of_the_sdk(
    database_url: str, tmp_path: Path, failed: Answer, kind: type[openai.APIStatusError]
) -> None:
    async with vectors(database_url, tmp_path) as (provider, client):
        provider.answer = failed
        with pytest.raises(kind) as caught:
            await client.embeddings.create(model="small", input="The sea")
        assert "Wrong key" not in str(caught.value)


async def test_the_wait_that_the_provider_asks_for_is_passed_on(database_url: str, tmp_path: Path) -> None:
    async with vectors(database_url, tmp_path) as (provider, client):
        slow = failure(429, message="Slow down.", type="rate_limit_error")
        provider.answer = replace(slow, headers={**JSON, "retry-after": "7"})
        with pytest.raises(openai.RateLimitError) as caught:
            await client.embeddings.create(model="small", input="The sea")
        assert caught.value.response.headers["retry-after"] == "7"


async def test_requests_beyond_the_plan_and_other_models_are_refused(database_url: str, tmp_path: Path) -> None:
    plans = {"ada": Plan("small", {"requests_per_day": 1})}
    async with vectors(database_url, tmp_path, plans) as (provider, client):
        provider.answer = answer([0.5])
        with pytest.raises(openai.BadRequestError, match="must be a model for embeddings") as refused:
            await client.embeddings.create(model="plain", input="The sea")
        assert refused.value.param == "model"
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="of nobody", input="The sea")
        await client.embeddings.create(model="small", input="The sea")
        with pytest.raises(openai.RateLimitError, match="requests_per_day"):
            await client.embeddings.create(model="small", input="The sea")
        assert len(provider.requests) == 1


async def usage_of(client: AsyncOpenAI, **query: str) -> Any:
    async with Client(str(client.base_url).removesuffix("/v1/"), None, client.api_key) as api:
        return await api.json("GET", "/api/usage", params=query)


@pytest.mark.extensions("usage")
async def test_the_tokens_and_their_cost_are_charged_to_the_owner(database_url: str, tmp_path: Path) -> None:
    async with vectors(database_url, tmp_path) as (provider, client):
        provider.answer = answer([0.5])
        await client.embeddings.create(model="small", input="The sea")
        provider.answer = failure(400, message="Too long.")
        with pytest.raises(openai.BadRequestError):
            await client.embeddings.create(model="small", input="The sea")
        provider.answer = Answer(b'{"object": "list", "data": []}', headers=JSON)
        mixed: Any = ["A ship", [1, 2, 3]]
        with pytest.raises(ValueError, match="No embedding data"):
            await client.embeddings.create(model="small", input=mixed)
        used = await usage_of(client, by="model,chat")
        (group,) = used["groups"]
        assert (group["model"], group["chat"], group["calls"]) == ("vectors-small", None, 2)
        # The first summand is the provider's count of tokens. The second is an estimate, because that response had no
        # count.
        assert used["total"]["input_tokens"] == 3 + (1 + 3)
        assert used["total"]["cost"] == pytest.approx(7 * 2.0 / 1_000_000)


@pytest.mark.extensions("usage")
async def test_a_plan_limits_the_tokens_and_the_cost(database_url: str, tmp_path: Path) -> None:
    plans = {"ada": Plan("small", {"tokens_per_day": 5})}
    async with vectors(database_url, tmp_path, plans) as (provider, client):
        provider.answer = failure(500, message="Broken.")
        for _ in range(3):  # each failed call returns the tokens that it had reserved
            with pytest.raises(openai.InternalServerError):
                await client.embeddings.create(model="small", input="The sea and the ships")
        provider.answer = answer([0.5])
        for _ in range(2):
            await client.embeddings.create(model="small", input="The sea")
        with pytest.raises(openai.RateLimitError, match="tokens_per_day") as refused:
            await client.embeddings.create(model="small", input="The sea")
        assert int(refused.value.response.headers["retry-after"]) > 0
        assert (await usage_of(client))["total"]["input_tokens"] == 6
        assert len(provider.requests) == 5


async def test_a_model_of_embeddings_answers_no_message(database_url: str, tmp_path: Path) -> None:
    async with vectors(database_url, tmp_path) as (provider, client):
        made = await client.responses.create(model="small", input="Hi")
        assert made.status == "failed"
        assert made.error is not None
        assert "makes embeddings" in made.error.message
        assert provider.requests == []

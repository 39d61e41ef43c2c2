"""Compares the adapter with Google's own SDK: both send the same requests, and read the same content from streams."""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import types

from tests.extensions.anthropic_clouds.test_clouds import TokenServer, service_account, tokens
from tests.extensions.gemini.streams import FIRST, MODEL, STREAMS, blocks_of
from tests.support.canned import Answer, CannedServer, canned_server, served
from tests.support.model_apis import providers_of
from tests.support.pages import blocks
from turnstream.domain.blocks import Block
from turnstream.domain.errors import AccountRefused, ConfigError, PermanentError, ProviderError, TooLong, TransientError
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.gemini.provider import GeminiProvider
from turnstream.libraries import extras
from turnstream.libraries.providers.connect import connect_providers
from turnstream.llm.models.api import ProviderSpec
from turnstream.llm.provider import Message, ModelRequest, count_tokens

# The SDK subclasses a class of aiohttp, so aiohttp warns.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
VERTEX = '[providers.gemini-vertex]\napi = "gemini"\nquirks = "vertex"\nbase_url = "{url}"\n'
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
TOOLS = (ToolSpec("doc_search", "Searches.", json.dumps(SCHEMA)),)
QUESTION = Message("user", (Block(0, 0, 0, "text", "Hello"),))


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        server.answer = Answer(STREAMS["calls with ids"])
        yield server


def client_of(server: CannedServer) -> genai.Client:
    return genai.Client(api_key="a key", vertexai=False, http_options=types.HttpOptions(base_url=server.url))


async def asked(server: CannedServer, request: ModelRequest) -> Any:
    async with (
        GeminiProvider("a key", f"{server.url}/v1") as provider,
        aclosing(provider.stream(request)) as stream,
    ):
        async for _ in stream:
            pass
    return server.requests[-1]


def plain(body: bytes) -> Any:
    """Returns the body in a normal form, because the SDK spells some names differently, and encodes signatures
    differently.
    """
    text = body.decode()
    for name in ("includeThoughts", "parametersJsonSchema", "thinkingLevel"):
        text = text.replace(re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name), name)
    members = json.loads(text.replace(FIRST.replace("+", "-").replace("/", "_"), FIRST))
    members.get("systemInstruction", {}).pop("role", None)
    return members


async def test_a_request_is_that_of_the_sdk(server: CannedServer) -> None:
    reply = tuple(blocks_of(STREAMS["calls with ids"]))
    results = tuple(
        Block(0, 0, 0, "tool_result", "seen", tool_use_id=block.tool_use_id, name=block.name)
        for block in reply
        if block.type == "tool_use"
    )
    params = {"temperature": 0.5, "max_tokens": 9, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    ours = await asked(
        server,
        ModelRequest(
            MODEL,
            (QUESTION, Message("assistant", reply), Message("user", results)),
            system="Be brief.",
            params={**params, "tool_choice": {"type": "any"}},
            tools=TOOLS,
        ),
    )
    client = client_of(server).aio
    received = [part async for part in await client.models.generate_content_stream(model=MODEL, contents="Hello")]
    contents = [types.Content(role="user", parts=[types.Part(text="Hello")])]
    parts = [part for each in received for part in (each.candidates or [])[0].content.parts or []]
    contents.append(types.Content(role="model", parts=parts))
    calls = [part.function_call for part in parts if part.function_call]
    answers = [types.FunctionResponse(id=call.id, name=call.name, response={"output": "seen"}) for call in calls]
    contents.append(types.Content(role="user", parts=[types.Part(function_response=answer) for answer in answers]))
    declaration = types.FunctionDeclaration(name="doc_search", description="Searches.", parameters_json_schema=SCHEMA)
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        temperature=0.5,
        max_output_tokens=9,
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.LOW),
        tools=[types.Tool(function_declarations=[declaration])],
        tool_config=types.ToolConfig(function_calling_config=calling),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    async for _ in await client.models.generate_content_stream(model=MODEL, contents=contents, config=config):
        pass
    await client.aclose()
    sdks = server.requests[-1]
    assert ours.target == sdks.target
    assert ours.headers["x-goog-api-key"] == sdks.headers["x-goog-api-key"] == "a key"
    assert plain(ours.body) == plain(sdks.body)


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_read_as_the_sdk_reads_it(name: str, server: CannedServer) -> None:
    server.answer = Answer(STREAMS[name], sizes=(7,))
    client = client_of(server).aio
    chunks = [each async for each in await client.models.generate_content_stream(model=MODEL, contents="Hello")]
    await client.aclose()
    parts = [part for each in chunks for part in (each.candidates or [])[0].content.parts or []]
    blocks = blocks_of(STREAMS[name])

    def texts(thought: bool) -> str:
        return "".join(part.text or "" for part in parts if bool(part.thought) == thought)

    assert "".join(block.text for block in blocks if block.type == "text") == texts(False)
    assert "".join(block.text for block in blocks if block.type == "thinking") == texts(True)
    calls = [part.function_call for part in parts if part.function_call]
    assert [(block.name, json.loads(block.text)) for block in blocks if block.is_call] == [
        (call.name, call.args) for call in calls
    ]
    signatures = [b64encode(part.thought_signature).decode() for part in parts if part.thought_signature]
    data = [json.loads(block.data) for block in blocks if block.data]
    kept = [each.get("thoughtSignature") or each.get("item", {}).get("thoughtSignature") for each in data]
    assert [each for each in kept if each] == signatures


async def test_tokens_are_counted_as_the_sdk_counts_them(server: CannedServer) -> None:
    server.answer = Answer(
        b'{"totalTokens": 31, "promptTokensDetails": []}', headers={"content-type": "application/json"}
    )
    request = ModelRequest(MODEL, (QUESTION,), system="Be brief.", tools=TOOLS)
    async with GeminiProvider("a key", f"{server.url}/v1") as provider:
        assert await provider.count(request) == 31
        async with GeminiProvider("a key", server.url, vertex=True) as other:
            assert await other.count(request) == 31
        server.answer = Answer(b"{}", headers={"content-type": "application/json"})
        with pytest.raises(TransientError, match="count of tokens"):
            await provider.count(request)
    first, vertex, _ = server.requests
    assert first.target == f"/v1/models/{MODEL}:countTokens"
    assert json.loads(first.body)["generateContentRequest"]["model"] == f"models/{MODEL}"
    assert json.loads(vertex.body).keys() == {"contents", "systemInstruction", "tools"}


async def failure(server: CannedServer, status: int, name: str, message: str, **details: Any) -> ProviderError:
    said = {"error": {"code": status, "message": message, "status": name, **details}}
    server.answer = Answer(json.dumps(said).encode(), status, {"content-type": "application/json"})
    with pytest.raises(ProviderError) as raised:
        await asked(server, ModelRequest(MODEL, (QUESTION,)))
    return raised.value


async def test_errors_are_classified_by_the_status_of_google(server: CannedServer) -> None:
    invalid = await failure(server, 400, "INVALID_ARGUMENT", "Thinking level MINIMAL is not supported for this model.")
    assert type(invalid) is PermanentError
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    wrong_key = await failure(server, 400, "INVALID_ARGUMENT", "API key not valid.", details=[reason])
    assert isinstance(wrong_key, AccountRefused)
    assert "key" not in wrong_key.shown
    assert isinstance(await failure(server, 403, "PERMISSION_DENIED", "No."), AccountRefused)
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
    busy = await failure(server, 429, "RESOURCE_EXHAUSTED", "You exceeded your quota.", details=[retry])
    assert isinstance(busy, TransientError)
    assert (busy.retry_after, busy.busy) == (34, True)
    long = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    assert isinstance(await failure(server, 400, "INVALID_ARGUMENT", long), TooLong)
    assert isinstance(await failure(server, 503, "UNAVAILABLE", "Overloaded."), TransientError)
    assert isinstance(await failure(server, 404, "NOT_FOUND", "No such model."), PermanentError)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-3.8-flash", "/models/gemini-3.8-flash"),
        ("tunedModels/ours", "/tunedModels/ours"),
        ("odd name?", "/models/odd%20name%3F"),
    ],
)
async def test_a_model_is_a_part_of_the_path(model: str, path: str, server: CannedServer) -> None:
    sent = await asked(server, ModelRequest(model, (QUESTION,)))
    assert sent.target == f"/v1{path}:streamGenerateContent?alt=sse"


def vertex_spec(folder: Path, table: str) -> ProviderSpec:
    (folder / "models.toml").write_text(table)
    (spec,) = (spec for spec in providers_of(folder / "models.toml", {}) if spec.name == "gemini-vertex")
    return spec


async def test_the_provider_of_the_page_calls_vertex_with_tokens_that_are_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (table,) = blocks("docs/providers.md", "Gemini", "toml")
    async with served(TokenServer(answer=Answer(STREAMS["grounding"]))) as issuer:
        service_account(issuer.url, monkeypatch)
        spec = vertex_spec(tmp_path, table.replace("https://aiplatform.googleapis.com", issuer.url))
        spec.api.verify(spec)
        async with connect_providers([spec]) as (offered,):
            for seconds in (3_600, 1, 1):  # Google's package refreshes a token minutes before the token expires
                issuer.seconds = seconds
                async for _ in offered.provider.stream(ModelRequest(MODEL, (QUESTION,))):
                    pass
        assert tokens(issuer) == ["Bearer t1", "Bearer t1", "Bearer t1"]
        async with connect_providers([spec]) as (offered,):
            for _ in range(2):
                async for _ in offered.provider.stream(ModelRequest(MODEL, (QUESTION,))):
                    pass
        assert tokens(issuer)[3:] == ["Bearer t2", "Bearer t3"]
        sent = issuer.requests[-1]
        model = f"/v1/projects/our-project/locations/global/publishers/google/models/{MODEL}"
        assert sent.target == f"{model}:streamGenerateContent?alt=sse"
        assert "x-goog-api-key" not in sent.headers


async def test_refused_credentials_are_the_operators_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with served(TokenServer(answer=Answer(STREAMS["grounding"]))) as issuer:
        issuer.refusal = Answer(b'{"error": "invalid_grant"}', 400, {"content-type": "application/json"})
        service_account(issuer.url, monkeypatch)
        spec = vertex_spec(tmp_path, VERTEX.format(url=issuer.url))
        async with connect_providers([spec]) as (offered,):
            with pytest.raises(AccountRefused, match="credentials of Google are not usable"):
                await count_tokens(offered.provider, ModelRequest(MODEL, (QUESTION,)))
    async with connect_providers([spec]) as (offered,):
        with pytest.raises(TransientError, match="server of Google's credentials"):
            await count_tokens(offered.provider, ModelRequest(MODEL, (QUESTION,)))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (VERTEX.replace("base_url", "# base_url"), r"^`base_url` of \[providers.gemini-vertex\] must be set"),
        (VERTEX, r"has no `key`, needs the package google.auth: pip install 'turnstream\[google\]'\.$"),
    ],
)
def test_vertex_needs_its_address_and_credentials(
    table: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    spec = vertex_spec(tmp_path, table.format(url="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=problem):
        spec.api.verify(spec)
    with_header = vertex_spec(tmp_path, VERTEX.format(url="http://127.0.0.1:1") + 'headers = { authorization = "a" }')
    with_header.api.verify(with_header)


def test_the_providers_behind_a_gateway_can_be_read(tmp_path: Path) -> None:
    (tables,) = blocks("docs/providers.md", "Behind a gateway", "toml")
    file = tmp_path / "models.toml"
    file.write_text(tables)
    found = {spec.name: (spec.api.name, spec.key) for spec in providers_of(file, {"LITELLM_KEY": "k"})}
    assert found == {
        "claude-by-litellm": ("anthropic", "k"),
        "gemini-by-litellm": ("gemini", "k"),
        "others-by-litellm": ("openai-chat", "k"),
    }


def test_a_key_offers_the_models_of_google() -> None:
    (spec,) = providers_of(None, {"GEMINI_API_KEY": "a"})
    assert (spec.name, spec.key, spec.prefixes) == ("gemini", "a", ("gemini-",))
    assert "gemini-3.8-flash" in {model.id for model in spec.models}

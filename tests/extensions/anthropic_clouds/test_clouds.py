"""Claude models on cloud platforms: each request equals the SDK's request, including the credentials of the cloud."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import anthropic
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.integration.adapters import APIS, REQUEST
from tests.integration.recordings import needs_recordings, read, streams
from tests.support.canned import Answer, Asked, CannedServer, canned_server, served
from tests.support.model_apis import EXTENSIONS, providers_of
from tests.support.pages import blocks
from turnstream.config import Settings
from turnstream.domain.errors import AccountRefused, ConfigError, ProviderError, TransientError
from turnstream.extensions.anthropic_clouds.options import OPTIONS, values_of
from turnstream.libraries import extras
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.models import default_model
from turnstream.llm.models.api import CallOptions
from turnstream.llm.provider import ModelRequest, Part

API = APIS["anthropic"]
REPLY = API.begun + API.said + API.end
JSON = {"content-type": "application/json"}
KEY = "a-key"
SECRET = "a-secret"
TABLES = {
    "anthropic-aws": {"region": "eu-west-1", "workspace": "w-1"},
    "anthropic-bedrock": {"region": "eu-west-1"},
    "anthropic-foundry": {},
    "anthropic-google-cloud": {"project": "acme", "workspace": "w-1"},
    "anthropic-vertex": {"project": "acme", "region": "europe-west1"},
}
Sdk = Callable[[str], Any]
SDKS: Mapping[str, Sdk] = {
    "anthropic-aws": lambda url: anthropic.AsyncAnthropicAWS(
        api_key=KEY, aws_region="eu-west-1", workspace_id="w-1", base_url=url
    ),
    "anthropic-bedrock": lambda url: anthropic.AsyncAnthropicBedrockMantle(
        api_key=KEY, aws_region="eu-west-1", base_url=url
    ),
    "anthropic-foundry": lambda url: anthropic.AsyncAnthropicFoundry(api_key=KEY, base_url=url),
    "anthropic-google-cloud": lambda url: anthropic.AsyncAnthropicGoogleCloud(
        project="acme", workspace_id="w-1", token_provider=lambda: KEY, base_url=url
    ),
    "anthropic-vertex": lambda url: anthropic.AsyncAnthropicVertex(
        region="europe-west1", project_id="acme", access_token=KEY, base_url=url
    ),
}
# Headers that differ between two calls or between two HTTP clients.
OWN = {"content-length", "accept", "accept-encoding", "host", "x-stainless-read-timeout"}


@pytest.fixture(autouse=True)
def an_environment_without_clouds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for options in OPTIONS.values():
        for option in options.values():
            for variable in option.variables:
                monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        server.answer = Answer(REPLY)
        yield server


def provider(
    api: str, url: str | None, key: str | None = KEY, options: Mapping[str, str] | None = None
) -> AnthropicProvider:
    table = {"api": api, **({} if key is None else {"key": key}), **({} if url is None else {"base_url": url})}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    given = TABLES[api] if options is None else options
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    file = Path("models.toml")
    file.write_text("\n".join(["[providers.cloud]", *lines, f"options = {{ {pairs} }}", 'headers = { x-team = "a" }']))
    (spec,) = (spec for spec in providers_of(file, {}) if spec.name == "cloud")
    spec.api.verify(spec)
    made = spec.api.connect(spec, CallOptions())
    assert isinstance(made, AnthropicProvider)
    return made


async def answer_of(provider: AnthropicProvider, request: ModelRequest = REQUEST) -> list[Part]:
    async with aclosing(provider.stream(request)) as stream:
        return [part async for parts in stream for part in parts]


async def failure_of(provider: AnthropicProvider) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await answer_of(provider)
    return raised.value


def headers_of(asked: Asked) -> dict[str, str]:
    return {name: value for name, value in asked.headers.items() if name not in OWN}


@pytest.mark.parametrize("api", TABLES)
@pytest.mark.parametrize("betas", [[], ["context-1m-2025-08-07"]])
async def test_a_call_is_that_of_the_sdk(api: str, betas: list[str], server: CannedServer) -> None:
    request = replace(REQUEST, model="claude-opus-4-5@20251101", params={"betas": betas} if betas else {})
    async with provider(api, server.url) as ours:
        await answer_of(ours, request)
    mine = json.loads(server.requests[0].body)
    said = {name: value for name, value in mine.items() if name not in {"stream", "anthropic_version"}}
    said |= {"model": request.model} | ({"betas": betas} if betas else {})
    async with SDKS[api](server.url) as sdk:
        messages = (sdk.beta if betas else sdk).messages
        async with await messages.create(**said, stream=True) as stream:
            async for _ in stream:
                pass
    own, sdks = server.requests
    assert own.target.removesuffix("?beta=true") == sdks.target
    theirs, ours_alone = headers_of(sdks), {"x-team": "a"}
    for headers in (theirs, mine_sent := headers_of(own)):
        headers.pop("traceparent", None)  # the test process adds this header if it records spans
    assert {**theirs, **ours_alone} == mine_sent
    assert json.loads(own.body) == json.loads(sdks.body)


@pytest.mark.parametrize("api", TABLES)
async def test_tokens_are_counted_as_the_sdk_counts_them(api: str, server: CannedServer) -> None:
    server.answer = Answer(b'{"input_tokens": 7}', headers=JSON)
    async with provider(api, server.url) as ours:
        assert await ours.count(REQUEST) == 7
    said = json.loads(server.requests[0].body)
    said.pop("anthropic_version", None)
    async with SDKS[api](server.url) as sdk:
        await sdk.messages.count_tokens(**said)
    own, sdks = server.requests
    assert own.target == sdks.target
    assert json.loads(own.body) == json.loads(sdks.body)


async def test_vertex_gets_sampling_parameters_in_the_version_that_has_them(server: CannedServer) -> None:
    async with provider("anthropic-vertex", server.url) as ours:
        await answer_of(ours, replace(REQUEST, params={"temperature": 0.5}))
    body = json.loads(server.requests[0].body)
    assert (body["temperature"], body["anthropic_version"]) == (0.5, "vertex-2023-10-16")


@pytest.mark.parametrize("api", TABLES)
async def test_failures_are_those_of_the_anthropic_api(api: str, server: CannedServer) -> None:
    async with provider(api, server.url) as ours, AnthropicProvider(KEY, server.url) as core:
        for status, type in ((401, "authentication_error"), (429, "rate_limit_error"), (404, "not_found_error")):
            body = json.dumps({"type": "error", "error": {"type": type, "message": "No."}}).encode()
            server.answer = Answer(body, status, {**JSON, "retry-after": "3"})
            found, expected = await failure_of(ours), await failure_of(core)
            assert (found.__class__, found.type, str(found)) == (expected.__class__, expected.type, str(expected))
        google = {"error": {"code": 403, "message": "Permission denied", "status": "PERMISSION_DENIED"}}
        server.answer = Answer(json.dumps([google]).encode(), 403, JSON)
        assert isinstance(await failure_of(ours), AccountRefused)


@needs_recordings
@pytest.mark.parametrize("api", TABLES)
async def test_recorded_answers_are_read_as_those_of_the_anthropic_api(api: str, server: CannedServer) -> None:
    files = streams()[::25]
    assert files
    async with provider(api, server.url) as ours, AnthropicProvider(KEY, server.url) as core:
        for file in files:
            server.answer = Answer(read(file), sizes=(7,))
            both: list[tuple[list[Part], str]] = []
            for each in (ours, core):
                try:
                    both.append((await answer_of(each), ""))
                except ProviderError as error:
                    both.append(([], str(error)))
            assert both[0][1] == both[1][1]
            assert joined(both[0][0]) == joined(both[1][0])


def joined(parts: list[Part]) -> list[Part]:
    """Returns all parts except `MessageStarted`, which has another request id in each call."""
    return [part for part in parts if type(part).__name__ != "MessageStarted"]


# --- signatures of AWS ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "service"), [("anthropic-aws", "aws-external-anthropic"), ("anthropic-bedrock", "bedrock-mantle")]
)
async def test_requests_to_aws_are_signed_each_for_its_body(
    api: str, service: str, server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session")
    async with provider(api, server.url, key=None) as ours:
        await answer_of(ours)
        await answer_of(ours, replace(REQUEST, model="another"))
    for asked in server.requests:
        assert asked.headers["x-amz-security-token"] == "a-session"
        assert asked.headers["authorization"] == signature(asked, service, "eu-west-1")
    first, second = (asked.headers["authorization"] for asked in server.requests)
    assert first != second


def signature(asked: Asked, service: str, region: str) -> str:
    """Computes the signature of AWS Signature Version 4 from the specification."""
    given = asked.headers["authorization"]
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    moment = asked.headers["x-amz-date"]
    url = urlsplit(asked.target)
    query = "&".join(sorted(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in parse_qsl(url.query)))
    headers = "".join(f"{name}:{' '.join(asked.headers[name].split())}\n" for name in names)
    digest = hashlib.sha256(asked.body).hexdigest()
    canonical = "\n".join(["POST", quote(url.path), query, headers, ";".join(names), digest])
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in (moment[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signed = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={';'.join(names)}, Signature={signed}"


@pytest.mark.parametrize("api", ["anthropic-aws", "anthropic-bedrock"])
async def test_an_account_without_credentials_of_aws_is_the_operators_business(api: str, server: CannedServer) -> None:
    # another region, because the SDK caches the credentials of each region
    elsewhere = {**TABLES[api], "region": "eu-north-1"}
    async with provider(api, server.url, key=None, options=elsewhere) as ours:
        refused = await failure_of(ours)
    assert isinstance(refused, AccountRefused)
    assert refused.type == "authentication_error"
    assert not server.requests


# --- tokens of Google and Microsoft ---------------------------------------------------------------------------------


@dataclass
class TokenServer(CannedServer):
    """A model API with a token endpoint. Each token that it issues is new, and is valid for `seconds`."""

    seconds: int = 3_600
    refusal: Answer | None = None
    issued: int = 0

    def answer_to(self, asked: Asked) -> Answer:
        if "token" not in asked.target:
            return self.answer
        if self.refusal is not None:
            return self.refusal
        self.issued += 1
        token = {"access_token": f"t{self.issued}", "token_type": "Bearer", "resource": "r"}
        lasting = {"expires_in": self.seconds, "expires_on": 4_102_444_800}
        return Answer(json.dumps(token | lasting).encode(), headers=JSON)


@pytest.fixture
async def issuer() -> AsyncIterator[TokenServer]:
    async with served(TokenServer(answer=Answer(REPLY))) as server:
        yield server


def service_account(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes Google's application default credentials to a file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    members = {"type": "service_account", "project_id": "acme", "private_key_id": "1", "private_key": pem}
    members |= {"client_email": "server@acme.iam.example", "client_id": "1", "token_uri": f"{url}/token"}
    Path("account.json").write_text(json.dumps(members))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(Path("account.json").absolute()))


def tokens(server: CannedServer) -> list[str]:
    return [asked.headers["authorization"] for asked in server.requests if "token" not in asked.target]


@pytest.mark.parametrize("api", ["anthropic-vertex", "anthropic-google-cloud"])
async def test_a_token_of_google_is_kept_while_it_is_valid_and_then_refreshed(
    api: str, issuer: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_account(issuer.url, monkeypatch)
    async with provider(api, issuer.url, key=None) as ours:
        await answer_of(ours)
        await answer_of(ours)
    assert tokens(issuer) == ["Bearer t1", "Bearer t1"]
    issuer.seconds = 1  # Google's package refreshes a token minutes before the token expires
    async with provider(api, issuer.url, key=None) as ours:
        await answer_of(ours)
        await answer_of(ours)
    assert issuer.issued >= 3
    assert tokens(issuer)[2:] == [f"Bearer t{issuer.issued - 1}", f"Bearer t{issuer.issued}"]


async def test_a_refused_account_of_google_is_the_operators_business(
    issuer: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}'
    issuer.refusal = Answer(body, 400, JSON)
    service_account(issuer.url, monkeypatch)
    async with provider("anthropic-vertex", issuer.url, key=None) as ours:
        refused = await failure_of(ours)
    assert isinstance(refused, AccountRefused)
    assert "Invalid JWT Signature." in refused.message
    assert "Invalid JWT" not in refused.shown


async def test_a_lost_server_of_tokens_is_tried_again(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with canned_server() as gone:
        service_account(gone.url, monkeypatch)
    async with provider("anthropic-vertex", server.url, key=None) as ours:
        assert isinstance(await failure_of(ours), TransientError)


async def test_foundry_gets_a_token_of_the_identity_of_its_machine(
    issuer: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{issuer.url}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "a-header")
    async with provider("anthropic-foundry", issuer.url, key=None) as ours:
        await answer_of(ours)
        await answer_of(ours)
    assert tokens(issuer) == ["Bearer t1", "Bearer t1"]
    assert issuer.requests[0].headers["x-identity-header"] == "a-header"
    assert "resource=https://ai.azure.com" in issuer.requests[0].target


# --- the models file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "options", "expected"),
    [
        ("anthropic-vertex", {"region": "global"}, r"`options.project` of \[providers.cloud\] must be set, or ANTH"),
        ("anthropic-aws", {"region": "eu-west-1"}, r"`options.workspace` of \[providers.cloud\] must be set"),
        ("anthropic-bedrock", {}, r"`options.region` .* must be set, or AWS_REGION or AWS_DEFAULT_REGION in the env"),
        ("anthropic-foundry", {}, r"`options.resource` of \[providers.cloud\] must be set"),
        ("anthropic-vertex", {"zone": "a"}, r"`options.zone` of \[providers.cloud\] must be one of region, project\.$"),
    ],
)
def test_a_missing_option_stops_the_start(api: str, options: Mapping[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        provider(api, None, options=options)


@pytest.mark.parametrize(
    ("api", "extra"), [("anthropic-vertex", "google"), ("anthropic-aws", "aws"), ("anthropic-foundry", "azure")]
)
def test_without_its_package_a_cloud_needs_a_key(api: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(extras, "find_spec", find_spec)
    with pytest.raises(ConfigError, match=rf"^The provider cloud .* has no `key`, .*turnstream\[{extra}\]'\.$"):
        provider(api, "http://127.0.0.1:1", key=None)
    assert provider(api, "http://127.0.0.1:1").name == "cloud"


def test_the_provider_of_the_page_can_be_read() -> None:
    (table,) = blocks("docs/providers.md", "Claude at a cloud", "toml")
    Path("models.toml").write_text(table)
    (spec,) = providers_of(Path("models.toml"), {})
    assert spec.api.name == "anthropic-vertex"
    assert values_of(spec) == {"project": "our-project", "region": "global"}


def test_an_api_without_options_has_none() -> None:
    Path("models.toml").write_text("[providers.anthropic]\noptions = { region = 'eu' }")
    with pytest.raises(ConfigError, match=r"`options.region` of \[providers.anthropic\] must be left out"):
        providers_of(Path("models.toml"), {"ANTHROPIC_API_KEY": "a"})


def test_an_option_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert provider("anthropic-bedrock", None, options={}).name == "cloud"


def test_a_server_with_a_broken_table_does_not_start() -> None:
    Path("models.toml").write_text("[providers.cloud]\napi = 'anthropic-vertex'\n[models.m]\nprovider = 'cloud'")
    settings = Settings(_env_file=None, models_file=Path("models.toml"))
    with pytest.raises(ConfigError, match=r"`options.region` of \[providers.cloud\] must be set, or CLOUD_ML_REGION"):
        default_model(settings, EXTENSIONS)

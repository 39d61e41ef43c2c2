"""A direct model call equals a call through the SDK: the bytes that it sends, its results, failures and limits."""

import asyncio
import gc
import gzip
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import anthropic
import httpx2
import openai
import pytest
from aiohttp.client_proto import ResponseHandler

from tests.integration.adapters import JSON, REQUEST, SDK_APIS, Adapter, Api, texts
from tests.integration.recordings import asked, manifest, needs_recordings, read, rounds_of, sessions, streams
from tests.support.canned import Answer, Asked, CannedServer, canned_server, served
from tests.support.certificates import Authority
from turnstream.domain.errors import ProviderError, TransientError
from turnstream.extensions.direct_calls import calls as direct_calls
from turnstream.extensions.direct_calls import kept_open as kept_open_module
from turnstream.extensions.direct_calls import pausing
from turnstream.extensions.direct_calls.calls import DirectCalls
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.libraries.providers.transport.calls import Calls
from turnstream.llm.provider import ModelRequest, Part, ProviderWrapper, kept_open

BOTH = {"direct": DirectCalls, "by the SDK": Calls}


@pytest.fixture(params=SDK_APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return SDK_APIS[request.param]


@dataclass
class Outcome:
    """The outcome of a call: its parts, and details of the failure if the call failed."""

    parts: list[Part] = field(default_factory=list)
    failure: tuple[object, ...] = ()


async def outcome_of(provider: Adapter, request: ModelRequest = REQUEST) -> Outcome:
    outcome = Outcome()
    try:
        async for parts in provider.stream(request):
            outcome.parts += parts
    except ProviderError as error:
        busy = isinstance(error, TransientError) and error.busy
        cause = type(error.__cause__).__name__ if isinstance(error.__cause__, STATUS_ERRORS) else ""
        outcome.failure = (type(error), error.type, error.message, error.request_id, error.retry_after, busy, cause)
    return outcome


STATUS_ERRORS = (anthropic.APIStatusError, openai.APIStatusError)


async def both(
    api: Api, url: str, request: ModelRequest = REQUEST, times: int = 1, **options: Any
) -> tuple[list[Outcome], list[Outcome]]:
    """Makes the same calls directly and through the SDK. Returns the outcomes of the direct calls and of the SDK's
    calls.
    """
    found: list[list[Outcome]] = []
    for make_calls in BOTH.values():
        async with api.make("a key", url, make_calls=make_calls, **options) as provider:
            found.append([await outcome_of(provider, request) for _ in range(times)])
    return found[0], found[1]


def halves(requests: Sequence[Asked]) -> tuple[list[Asked], list[Asked]]:
    middle = len(requests) // 2
    return list(requests[:middle]), list(requests[middle:])


async def assert_equal(
    api: Api, server: CannedServer, request: ModelRequest = REQUEST, times: int = 2, **options: Any
) -> tuple[list[Outcome], list[Asked]]:
    """Asserts that direct calls and SDK calls send equal bytes and have equal outcomes. Returns the outcomes and the
    requests of the direct calls.
    """
    server.requests.clear()
    direct, by_sdk = await both(api, server.url, request, times, **options)
    assert direct == by_sdk
    sent, expected = halves(server.requests)
    assert sent == expected
    return direct, sent


# --- requests --------------------------------------------------------------------------------------------------------


def whole(api: Api) -> Answer:
    return Answer(api.begun + api.said + api.end)


async def test_a_direct_call_puts_the_same_bytes_on_the_wire(api: Api) -> None:
    async with canned_server() as server:
        server.answer = whole(api)
        outcomes, sent = await assert_equal(api, server)
    assert outcomes[0].parts
    assert sent[0] == sent[1]
    assert sent[0].head.startswith(f"POST {api.path} HTTP/1.1\r\n")


async def test_no_request_is_kept_while_its_answer_comes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = direct_calls._Template.send, list[bytes]()

    async def watched(template: Any, body: bytes, cookies: httpx2.Cookies) -> aiohttp.ClientResponse:
        sent.append(body)
        return await send(template, body, cookies)

    monkeypatch.setattr(direct_calls._Template, "send", watched)
    async with canned_server() as server, api.make("a key", server.url) as provider:
        server.answer = whole(api)
        async with aclosing(provider.stream(REQUEST)) as stream:
            assert await anext(stream)
            assert [holder for holder in gc.get_referrers(sent[0]) if holder is not sent] == []


async def test_betas_and_the_variables_of_the_sdks_are_sent_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Mine: 1\nX-Stainless-Arch: other")
    monkeypatch.setenv("OPENAI_ORG_ID", "an-organisation")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "a-project")
    async with canned_server() as server:
        server.answer = whole(api)
        sent: list[Asked] = []
        for betas in ([], ["a-1"], ["a-1", "b-2"], []):
            request = ModelRequest(
                "m", REQUEST.messages, params={"betas": betas} if api is SDK_APIS["anthropic"] else {}
            )
            _, sent = await assert_equal(api, server, request)
            assert sent[0].headers.get("anthropic-beta", "") == (",".join(betas) if request.params else "")
    assert {"x-mine", "openai-organization"} & sent[0].headers.keys()


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"], indirect=True)
async def test_headers_of_the_file_of_models_are_sent(api: Api) -> None:
    async with canned_server() as server:
        server.answer = whole(api)
        _, sent = await assert_equal(api, server, headers={"X-Title": "turns", "user-agent": "mine"})
    assert sent[0].headers["user-agent"] == "mine"


async def test_an_address_keeps_its_path_and_query(api: Api) -> None:
    async with canned_server() as server:
        server.answer = whole(api)
        server.url += "/a%20gate way/v7?tenant=1&x=a%2Fb"
        _, sent = await assert_equal(api, server)
    assert "v7" in sent[0].target


async def test_cookies_come_back(api: Api) -> None:
    async with canned_server() as server:
        server.answer = Answer(whole(api).body, headers={**whole(api).headers, "set-cookie": "route=7; Path=/"})
        _, sent = await assert_equal(api, server, times=3)
    assert [one.headers.get("cookie") for one in sent] == [None, "route=7", "route=7"]


async def test_a_cookie_of_another_path_does_not(api: Api) -> None:
    async with canned_server() as server:
        server.answer = Answer(whole(api).body, headers={**whole(api).headers, "set-cookie": "a=1; Path=/elsewhere"})
        _, sent = await assert_equal(api, server)
    assert [one.headers.get("cookie") for one in sent] == [None, None]


class Spied:
    """Records the arguments of aiohttp's requests, including all limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[dict[str, Any]] = []
        inner = aiohttp.ClientSession._request

        async def spy(session: aiohttp.ClientSession, method: str, url: Any, **options: Any) -> aiohttp.ClientResponse:
            headers = [(name.lower(), value) for name, value in options["headers"].items()]
            connector = session.connector
            assert isinstance(connector, aiohttp.TCPConnector)
            limits = connector.limit, connector._keepalive_timeout
            proxy_headers = dict(options.get("proxy_headers") or {})
            known = {"allow_redirects", "auto_decompress", "data", "proxy", "proxy_auth", "server_hostname", "timeout"}
            call = {name: value for name, value in options.items() if name in known and value is not None}
            call |= {"method": method, "url": str(url), "headers": headers, "of": limits}
            self.calls.append({**call, "proxy": str(options.get("proxy") or ""), "to": proxy_headers})
            assert options.keys() <= known | {"headers", "proxy_headers", "compress"}
            return await inner(session, method, url, **options)

        monkeypatch.setattr(aiohttp.ClientSession, "_request", spy)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HTTP_PROXY": "http://127.0.0.1:9"},
        {"ALL_PROXY": "http://127.0.0.1:9"},
        {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "somewhere.invalid"},
        {"HTTPS_PROXY": "http://127.0.0.1:9"},
    ],
    ids=lambda environment: "+".join(environment) or "none",
)
@pytest.mark.parametrize("read_timeout", [None, 7.5])
async def test_time_limits_proxies_and_connections_are_those_of_the_sdks_client(
    api: Api, environment: Mapping[str, str], read_timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spied = Spied(monkeypatch)
    direct, by_sdk = await both(api, "http://somewhere.invalid:9", read_timeout=read_timeout)
    assert direct == by_sdk
    first, second = spied.calls
    assert first == second
    assert first["timeout"] == aiohttp.ClientTimeout(connect=read_timeout, sock_connect=5, sock_read=read_timeout)
    assert bool(first["proxy"]) == (bool({"HTTP_PROXY", "ALL_PROXY"} & environment.keys()) and len(environment) < 2)


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_redirects_are_followed_alike(api: Api) -> None:
    class Moving(CannedServer):
        def answer_to(self, asked: Asked) -> Answer:
            status, _, where = asked.target.lstrip("/").partition("/")
            if status.isdecimal():
                return Answer(b"gone", int(status), {"location": f"/{where}?{where}", "set-cookie": "seen=1"})
            return Answer(b"gone", 307, {"location": asked.target}) if "loop" in asked.target else whole(api)

    async with served(Moving()) as server:
        url = server.url
        for status in (301, 302, 303, 307, 308):
            server.url = f"{url}/{status}"
            outcomes, sent = await assert_equal(api, server)
            assert outcomes[0].parts
            assert [one.head.split()[0] for one in sent[:2]] == ["POST", "POST" if status in {307, 308} else "GET"]
        server.url = f"{url}/loop"
        outcomes, _ = await assert_equal(api, server, times=1)
        assert outcomes[0].failure[2] == "The provider redirected the request too often."


async def test_a_compressed_answer_is_read_alike(api: Api) -> None:
    async with canned_server() as server:
        packed = {**whole(api).headers, "content-encoding": "gzip"}
        server.answer = Answer(gzip.compress(whole(api).body), headers=packed, sizes=[20])
        outcomes, _ = await assert_equal(api, server)
        assert outcomes[0].parts
        server.answer = Answer(b"no gzip", headers=packed)
        outcomes, _ = await assert_equal(api, server)
        assert outcomes[0].failure[2] == "The provider's answer could not be decompressed."


async def test_a_status_has_the_same_failure_and_is_asked_for_once(api: Api) -> None:
    bodies: list[bytes] = [b"", b"No.", b"<html><title>Bad</title>", b'["no"]', b'{"message":"No."}', b'{"error":null}']
    bodies += [json.dumps({"error": {"type": "overloaded_error", "message": "No."}, "request_id": "r"}).encode()]
    headers = {**JSON, "request-id": "req_1", "x-request-id": "req_2", "retry-after": "7"}
    async with canned_server() as server, ways(api, server.url) as (direct, by_sdk):
        for status in (201, 204, 304, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 503, 529):
            for body in bodies if status not in {204, 304} else [b""]:
                server.answer = Answer(body, status, headers, sizes=[3])
                server.requests.clear()
                assert await outcome_of(direct) == await outcome_of(by_sdk)
                first, second = server.requests
                assert first == second


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"", ending="cut", head=False),
        Answer(b"", ending="reset", head=False),
        Answer(b"data: {", ending="cut"),
        Answer(b"data: {", ending="reset"),
        Answer(b"No", 500, ending="cut"),
        Answer(b"No", 500, ending="reset"),
        Answer(b"", 200, {"x" * 9000: "y"}),
        Answer(b"", 999),
        Answer(b"HTTP", head=False),
    ],
    ids=lambda answer: f"{answer.status}-{answer.body.decode()}-{answer.ending}-{answer.head}",
)
async def test_a_lost_connection_has_the_same_failure(api: Api, answer: Answer) -> None:
    async with canned_server() as server:
        server.answer = answer
        outcomes, _ = await assert_equal(api, server)
    assert outcomes[0].failure or outcomes[0].parts == []


@pytest.mark.parametrize("answer", [Answer(b"", ending="wait", head=False), Answer(b"data: {", ending="wait")])
async def test_silence_has_the_same_failure(api: Api, answer: Answer) -> None:
    async with canned_server() as server:
        server.answer = answer
        outcomes, _ = await assert_equal(api, server, times=1, read_timeout=0.5)
    assert outcomes[0].failure[:2] == (TransientError, "timeout_error")


@pytest.mark.parametrize(
    "url",
    ["http://nowhere.invalid", "http://127.0.0.1:1", "https://127.0.0.1:1", "ftp://127.0.0.1", "http://[::1]:1/"],
)
async def test_a_connection_that_cannot_be_made_has_the_same_failure(api: Api, url: str) -> None:
    direct, by_sdk = await both(api, url)
    assert direct == by_sdk
    assert direct[0].failure[:2] == (TransientError, "connection_error")


KEY = SimpleNamespace(host="a", port=1, ssl=True, is_ssl=True)
SENT = SimpleNamespace(real_url="u")
FAILURES: list[Exception] = [
    aiohttp.ClientConnectorDNSError(KEY, OSError(1, "m")),  # type: ignore[arg-type]
    aiohttp.ClientConnectorError(KEY, OSError(1, "m")),  # type: ignore[arg-type]
    aiohttp.ClientConnectorCertificateError(KEY, Exception("m")),  # type: ignore[arg-type]
    aiohttp.ClientConnectorSSLError(KEY, OSError(1, "m")),
    aiohttp.ClientProxyConnectionError(KEY, OSError(1, "m")),  # type: ignore[arg-type]
    aiohttp.ClientHttpProxyError(SENT, (), status=407),  # type: ignore[arg-type]
    aiohttp.ClientResponseError(SENT, ()),  # type: ignore[arg-type]
    aiohttp.ServerFingerprintMismatch(b"", b"", "h", 1),
    aiohttp.ClientOSError(1, "m"),
    aiohttp.ClientConnectionError("m"),
    aiohttp.ClientConnectionResetError("m"),
    aiohttp.ServerConnectionError("m"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.ConnectionTimeoutError(),
    aiohttp.SocketTimeoutError(),
    aiohttp.ClientPayloadError("m"),
    aiohttp.InvalidURL("u"),
    aiohttp.InvalidUrlClientError("u"),
    aiohttp.NonHttpUrlClientError("u"),
    aiohttp.ClientError("m"),
    ConnectionResetError("m"),
    ssl.SSLCertVerificationError("m"),
    ssl.SSLError("m"),
]


async def test_every_exception_of_the_transport_has_the_same_failure(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ways(api, "http://127.0.0.1:1") as (direct, by_sdk):
        for error in FAILURES:

            async def fail(*_args: object, error: Exception = error, **_options: object) -> aiohttp.ClientResponse:
                raise error

            monkeypatch.setattr(aiohttp.ClientSession, "_request", fail)
            outcome = await outcome_of(direct)
            assert outcome == await outcome_of(by_sdk), error
            assert outcome.failure


async def test_after_its_client_is_closed_a_call_fails_alike(api: Api) -> None:
    found: list[Outcome] = []
    async with canned_server() as server:
        server.answer = whole(api)
        for make_calls in BOTH.values():
            async with api.make("a key", server.url, make_calls=make_calls) as provider:
                await outcome_of(provider)
            found.append(await outcome_of(provider))
    assert found[0] == found[1]
    assert found[0].failure[:2] == (TransientError, "connection_error")


# --- recordings ------------------------------------------------------------------------------------------------------


@needs_recordings
@pytest.mark.timeout(180)
@pytest.mark.parametrize("moment", [-1.0, 1.0], ids=["with pauses", "without pauses"])
async def test_every_recorded_stream_is_read_alike(api: Api, moment: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "_MOMENT", moment)
    headers = {"content-type": "text/event-stream", "request-id": "req_1"}
    async with canned_server() as server, ways(api, server.url) as (direct, by_sdk):
        for file in streams(name_of(api)):
            server.answer = Answer(read(file), headers=headers, sizes=[2000])
            assert await outcome_of(direct) == await outcome_of(by_sdk), file
    assert server.requests
    # A connection is reused after each complete answer.
    assert server.connections <= 2 + sum(1 for _ in server.requests) // 2


class InTwoParts(CannedServer):
    """A server that sends the first part of an answer at once, and the rest when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first = b""
        self.go, self.sent = asyncio.Event(), asyncio.Event()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(self.first), self.first))
        await self.go.wait()
        for byte in self.answer.body:
            writer.write(b"1\r\n%c\r\n" % byte)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        self.sent.set()
        await reader.read()
        return False


@pytest.mark.parametrize("moment", [-1.0, 1e9], ids=["with pauses", "without pauses"])
async def test_data_received_while_a_reader_is_busy_is_parsed_at_once(
    api: Api, moment: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pausing, "_MOMENT", moment)
    parsed = 0
    inner = ResponseHandler.data_received

    def count(protocol: ResponseHandler, data: bytes) -> None:
        nonlocal parsed
        parsed += 1
        inner(protocol, data)

    monkeypatch.setattr(ResponseHandler, "data_received", count)
    async with served(InTwoParts()) as server, api.make("a key", server.url) as provider:
        server.first, server.answer = api.begun + api.said, Answer(api.end)
        parts: list[Part] = []
        async for some in provider.stream(REQUEST):
            parts += some
            if not server.sent.is_set():
                before = parsed
                server.go.set()
                await server.sent.wait()
                assert (parsed > before) == (moment > 0)
    assert texts(parts) == "Hi"


async def test_a_connection_that_is_lost_in_a_pause_is_a_failure(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "_MOMENT", -1.0)
    async with canned_server() as server, api.make("a key", server.url) as provider:
        server.answer = whole(api)
        assert (await outcome_of(provider)).parts
        assert isinstance(provider._calls, DirectCalls)
        template = provider._calls._last
        assert template is not None
        server.answer = Answer(api.begun + api.said, ending="wait")
        stream = provider.stream(REQUEST)
        await anext(stream)
        await template.session.close()
        with pytest.raises(TransientError):
            await anext(stream)


@needs_recordings
async def test_every_recorded_request_is_sent_alike(api: Api) -> None:
    kind = name_of(api)
    bodies = [asked(session, number) for session in sessions(kind) for number in range(1, rounds_of(session) + 1)]
    bodies += [recorded["request_json"] for recorded in recorded_errors() if recorded.get("request_json")]
    async with canned_server() as server, ways(api, server.url) as both_ways:
        server.answer = whole(api)
        for body in bodies:
            server.requests.clear()
            for provider in both_ways:
                await posted(provider, json.dumps(body).encode())
            direct, by_sdk = server.requests
            assert direct == by_sdk
            assert json.loads(direct.body) == body
    assert bodies


@needs_recordings
async def test_every_recorded_error_is_sorted_alike(api: Api) -> None:
    async with canned_server() as server, ways(api, server.url) as (direct, by_sdk):
        for recorded in recorded_errors():
            dropped = {"content-length", "content-encoding", "transfer-encoding", "connection"}
            headers = {name: value for name, value in recorded["headers"].items() if name.lower() not in dropped}
            body = recorded.get("body") or json.dumps(recorded.get("body_json"))
            server.answer = Answer(body.encode(), recorded["status"], headers)
            outcome = await outcome_of(direct)
            assert outcome == await outcome_of(by_sdk)
            assert outcome.failure


def name_of(api: Api) -> str:
    return next(name for name, known in SDK_APIS.items() if known is api)


def recorded_errors() -> list[dict[str, Any]]:
    return [json.loads(read(entry["file"])) for entry in manifest()["files"] if entry["kind"] == "error"]


@asynccontextmanager
async def ways(api: Api, url: str) -> AsyncIterator[tuple[Adapter, Adapter]]:
    async with (
        api.make("a key", url, make_calls=DirectCalls) as direct,
        api.make("a key", url, make_calls=Calls) as by_sdk,
    ):
        yield direct, by_sdk


async def posted(provider: Adapter, body: bytes) -> None:
    if isinstance(provider, AnthropicProvider):
        post = provider._post("/v1/messages", body, REQUEST, "text/event-stream")
    else:
        post = provider._post(provider.path, body, "text/event-stream")
    async with post as response:
        await response.whole(1_000_000)


# --- TLS and proxies -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def tunnel(status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """Runs a CONNECT proxy. Yields its address and the heads of the requests that it received. With another `status`
    than 200, the proxy refuses each tunnel.
    """
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {status} Proxy\r\n\r\n".encode())
        if status == 200:
            host, _, port = seen[-1].split()[1].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, back), pump(there, writer))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", seen
    finally:
        listening.close()
        await listening.wait_closed()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return authority


@asynccontextmanager
async def behind_tls(authority: Authority, *, wants_certificate: bool = False) -> AsyncIterator[CannedServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(authority.issue("127.0.0.1"))
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    server = CannedServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()
        await server.stop()


async def test_an_own_authority_is_trusted(api: Api, trusted: Authority) -> None:
    async with behind_tls(trusted) as server:
        server.answer = whole(api)
        outcomes, _ = await assert_equal(api, server)
    assert outcomes[0].parts
    assert server.connections == len(BOTH)


async def test_a_strange_authority_is_not(api: Api, authority: Authority) -> None:
    async with behind_tls(authority) as server:
        direct, by_sdk = await both(api, server.url)
    assert direct == by_sdk
    assert direct[0].failure[2] == "The TLS certificate of the provider is not valid."


async def test_a_client_certificate_is_shown(api: Api, trusted: Authority) -> None:
    async with behind_tls(trusted, wants_certificate=True) as server:
        server.answer = whole(api)
        for without in await both(api, server.url):
            assert without[0].failure[0] is TransientError
        outcomes, _ = await assert_equal(api, server, client_certificate=str(trusted.issue("127.0.0.2")))
        assert outcomes[0].parts


async def test_a_proxy_leads_through_tls(api: Api, trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    async with behind_tls(trusted) as server, tunnel() as (proxy, seen):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy}")
        server.answer = whole(api)
        outcomes, _ = await assert_equal(api, server)
    assert outcomes[0].parts
    first, second = seen
    assert first == second
    assert first.startswith("CONNECT 127.0.0.1:")


@pytest.mark.filterwarnings("ignore:The 'proxy_auth' parameter is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning")
async def test_a_proxy_is_shown_its_password_and_may_refuse(
    api: Api, trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_tls(trusted) as server, tunnel(407) as (proxy, seen):
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:word@{proxy}")
        direct, by_sdk = await both(api, server.url)
    assert direct == by_sdk
    assert direct[0].failure[2] == "The proxy made no connection to the provider."
    first, second = seen
    assert first == second
    assert "Proxy-Authorization: Basic dXNlcjp3b3Jk" in first


# --- connections that are kept for the next call ---------------------------------------------------------------------


class Watched(CannedServer):
    """A server whose connections a test can close. It releases `came` for each new connection."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Semaphore(0)
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.came.release()
        await super().serve(reader, writer)


@asynccontextmanager
async def watched(api: Api) -> AsyncIterator[tuple[Watched, Adapter]]:
    async with served(Watched()) as server, api.make("a key", server.url) as provider:
        server.answer = whole(api)
        async with kept_open(provider):  # the connection is kept before the first call
            assert (await outcome_of(provider)).parts
        assert server.connections == 1
        yield server, provider


async def test_a_connection_is_kept_from_other_calls(api: Api) -> None:
    async with watched(api) as (server, provider):
        async with kept_open(ProviderWrapper(provider)):
            await asyncio.sleep(0)
            assert (await outcome_of(provider)).parts
            assert server.connections == 2
        await asyncio.gather(outcome_of(provider), outcome_of(provider))
    assert server.connections == 2


async def test_a_connection_that_the_provider_closes_is_made_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_open_module, "_CHECK", 0.01)
    async with watched(api) as (server, provider):
        await server.came.acquire()
        async with kept_open(provider):
            server.writers[0].close()
            await server.came.acquire()
        assert (await outcome_of(provider)).parts
    assert server.connections == 2


async def test_a_connection_in_the_making_is_waited_for(api: Api) -> None:
    async with watched(api) as (server, provider):
        server.writers[0].close()
        await server.closed.acquire()
        async with kept_open(provider):
            await asyncio.sleep(0)
        assert server.connections == 2
        assert (await outcome_of(provider)).parts
    assert server.connections == 2


async def test_a_turn_that_is_cancelled_lets_its_connection_go(api: Api) -> None:
    async with watched(api) as (server, provider):

        async def use() -> None:
            async with kept_open(provider):
                await asyncio.Event().wait()

        using = asyncio.create_task(use())
        await asyncio.sleep(0)
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert (await outcome_of(provider)).parts
    assert server.connections == 1


async def test_a_connection_that_cannot_be_kept_stops_nothing(api: Api) -> None:
    async with watched(api) as (_, provider):
        pass
    async with kept_open(provider):
        await asyncio.sleep(0)


async def test_a_connection_through_a_proxy_is_kept(
    api: Api, trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_tls(trusted) as server, tunnel() as (proxy, seen):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy}")
        server.answer = whole(api)
        async with api.make("a key", server.url) as provider:
            assert (await outcome_of(provider)).parts
            async with kept_open(provider):
                await asyncio.sleep(0)
            assert (await outcome_of(provider)).parts
    assert len(seen) == 1


# --- requests that the SDK must build itself -------------------------------------------------------------------------


async def test_requests_with_varying_heads_are_built_by_the_sdk(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    async with canned_server() as server, api.make("a key", server.url) as provider:
        server.answer = whole(api)
        sdk = type(provider._client)
        monkeypatch.setattr(sdk, "user_agent", property(lambda _: f"call {next(numbers)}"))
        assert [(await outcome_of(provider)).failure for _ in range(2)] == [(), ()]
    first, second = server.requests
    assert first.headers["user-agent"] != second.headers["user-agent"]


async def test_a_transport_that_is_not_known_is_used_as_the_sdk_uses_it() -> None:
    def network(**_options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(body)))
        )

    api = SDK_APIS["anthropic"]
    body = whole(api).body
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anthropic, "DefaultAioHttpClient", network)
        async with api.make("a key", "http://127.0.0.1:1") as provider:
            assert (await outcome_of(provider)).parts


async def test_templates_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_calls, "_MAX_TEMPLATES", 2)
    api = SDK_APIS["anthropic"]
    async with canned_server() as server, api.make("a key", server.url) as provider:
        server.answer = whole(api)
        for name in ("a", "b", "c", "a"):
            request = ModelRequest("m", REQUEST.messages, params={"betas": [name]})
            assert (await outcome_of(provider, request)).parts
            assert server.requests[-1].headers["anthropic-beta"] == name
            assert isinstance(provider._calls, DirectCalls)
            assert len(provider._calls._templates) <= 2

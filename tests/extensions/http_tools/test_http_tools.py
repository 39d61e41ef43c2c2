"""HTTP tools that are called over real sockets."""

import asyncio
import gzip
import json
import socket
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from aiohttp import web

from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools.request_tools import OperatorSecret, RequestToolRules, read_secrets
from turnstream.extensions.http_tools.tool import HttpTool, HttpTools
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.outgoing.signature import verify
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, ToolContext
from turnstream.tools.toolset import Toolset

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = "key-1"
CONTEXT = ToolContext("ada", UUID(int=1), UUID(int=2), "toolu_1", KEY, progress=lambda words: None)
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
OSLO = '{"city": "Oslo"}'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """A local server that sends prescribed answers and records its requests."""

    def __init__(self) -> None:
        self.paths: dict[str, Handler] = {}
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.headers, await request.read()))
        return await self.paths[request.path](request)

    def answer(self, path: str, **response: Any) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(**response)

        self.paths[path] = handler

    def redirect(self, path: str, to: str, status: int = 307) -> None:
        self.answer(path, status=status, headers={"location": to})

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


async def serving(stack: AsyncExitStack) -> Service:
    service = Service()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    listening = socket.create_server(("127.0.0.1", 0))
    service.port = listening.getsockname()[1]
    await web.SockSite(runner, listening).start()
    return service


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def service(stack: AsyncExitStack) -> Service:
    return await serving(stack)


@pytest.fixture
async def stranger(stack: AsyncExitStack) -> Service:
    """Starts a server at another origin."""
    return await serving(stack)


@pytest.fixture
async def tools(stack: AsyncExitStack) -> HttpTools:
    return await stack.enter_async_context(_tools(["127.0.0.1"]))


def _tools(hosts: Sequence[str], **more: Any) -> HttpTools:
    """Creates HTTP tools that allow the same hosts to the operator and to requests."""
    allowed = Allowed.of(hosts)
    return HttpTools(allowed, SECRET, request_tools=RequestToolRules(allowed), **more)


@pytest.fixture
async def strict(stack: AsyncExitStack) -> HttpTools:
    """Creates HTTP tools that allow no internal hosts."""
    return await stack.enter_async_context(HttpTools(Allowed(), SECRET))


def spec(url: str, *, headers: Mapping[str, str] | None = None, timeout: float = 30.0, **more: Any) -> ToolSpec:
    return ToolSpec("weather", "How it is outside.", SCHEMA, http=HttpCall(url, timeout, headers or {}), **more)


async def run(tool: HttpTool, sent: str = OSLO) -> Outcome:
    """Calls the tool through a toolset, as the engine does, so that an exception of the tool becomes an outcome."""
    return await Toolset([tool], backoff=lambda retry: 0).run("weather", sent, CONTEXT)


# --- a call ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_one_signed_request_and_its_answer_the_result(tools: HttpTools, service: Service) -> None:
    service.answer("/", text='{"output": {"sky": "blue"}}', content_type="application/json")
    tool = tools.operator_tool(spec(service.url(), headers={"Authorization": "Bearer tok-123"}), Policy())
    assert await run(tool) == Outcome('{"sky":"blue"}')
    ((method, _, headers, body),) = service.requests
    assert method == "POST"
    assert json.loads(body) == {
        "tool": "weather",
        "input": {"city": "Oslo"},
        "owner": "ada",
        "chat_id": str(UUID(int=1)),
        "turn_id": str(UUID(int=2)),
        "tool_use_id": "toolu_1",
        "idempotency_key": KEY,
    }
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer tok-123"
    assert headers["idempotency-key"] == headers["webhook-id"] == KEY
    assert verify(SECRET, headers, body, now=time.time())


async def test_without_a_signing_secret_nothing_is_signed(stack: AsyncExitStack, service: Service) -> None:
    tools = await stack.enter_async_context(HttpTools(Allowed.of(["127.0.0.1"])))
    service.answer("/", text="sunny")
    assert await run(tools.operator_tool(spec(service.url()), Policy())) == Outcome("sunny")
    assert not any(name.lower().startswith("webhook-") for name in service.requests[0][2])


async def test_a_tool_of_a_request_is_never_signed(tools: HttpTools, service: Service) -> None:
    service.answer("/", text="sunny")
    assert await run(tools.request_tool(spec(service.url()))) == Outcome("sunny")
    assert not any(name.lower().startswith("webhook-") for name in service.requests[0][2])


async def test_a_tool_of_a_request_has_hosts_of_its_own(stack: AsyncExitStack, service: Service) -> None:
    rules = RequestToolRules(Allowed.of(["localhost"]))
    tools = await stack.enter_async_context(HttpTools(Allowed.of(["127.0.0.1"]), request_tools=rules))
    service.answer("/", text="sunny")
    tools.operator_tool(spec(service.url()), Policy())
    with pytest.raises(ValueError, match="https"):
        tools.request_tool(spec(service.url()))
    assert await run(tools.request_tool(spec(service.url(host="localhost")))) == Outcome("sunny")
    # The network that the operator allows does not apply to a host name that a request chooses.
    outcome = await run(tools.request_tool(spec(service.url(host="ip6-localhost", scheme="https"))))
    assert outcome.is_error


async def test_a_tool_of_a_request_may_be_held_to_the_list(stack: AsyncExitStack, service: Service) -> None:
    rules = RequestToolRules(replace(Allowed.of(["127.0.0.1"]), public=False))
    tools = await stack.enter_async_context(HttpTools(Allowed(), request_tools=rules))
    with pytest.raises(ValueError, match="TURNSTREAM_REQUEST_TOOLS_ALLOW"):
        tools.request_tool(spec("https://example.com/"))
    service.answer("/", status=307, headers={"location": "https://example.com/"})
    assert (await run(tools.request_tool(spec(service.url())))).is_error
    assert tools.request_tool(spec(service.url(), timeout=500)).policy.timeout == 60


async def test_a_header_may_name_a_secret_of_the_operator(stack: AsyncExitStack, service: Service) -> None:
    secrets = {"CRM_KEY": OperatorSecret("tok-123456", frozenset({"127.0.0.1"}))}
    rules = RequestToolRules(Allowed.of(["127.0.0.1", "localhost"]), secrets=secrets)
    tools = await stack.enter_async_context(HttpTools(Allowed(), request_tools=rules))
    service.answer("/", text="you sent tok-123456")
    named = {"Authorization": "Bearer ${secret:CRM_KEY}"}
    tool = tools.request_tool(spec(service.url(), headers=named))
    assert await run(tool) == Outcome("you sent [hidden]")
    assert service.requests[0][2]["authorization"] == "Bearer tok-123456"
    assert tool.spec.http is not None
    assert tool.spec.http.headers == named
    with pytest.raises(ValueError, match="CRM_KEY, which the operator has not allowed"):
        tools.request_tool(spec(service.url(host="localhost"), headers=named))
    with pytest.raises(ValueError, match="OTHER, which the operator has not allowed"):
        tools.request_tool(spec(service.url(), headers={"x-key": "${secret:OTHER}"}))


def test_secrets_are_variables_with_hosts(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("tok-2\n")
    environment = {"CRM_KEY": "tok-1", "ERP_KEY_FILE": str(tmp_path / "key")}
    assert read_secrets("CRM_KEY=a.example, CRM_KEY=B.example., ERP_KEY=c.example,", environment) == {
        "CRM_KEY": OperatorSecret("tok-1", frozenset({"a.example", "b.example"})),
        "ERP_KEY": OperatorSecret("tok-2", frozenset({"c.example"})),
    }
    for text, reason in (("CRM_KEY", "and a host"), ("NONE=a.example", "must have a value"), ("a b=c", "and a host")):
        with pytest.raises(ValueError, match=reason):
            read_secrets(text, environment)


async def test_a_declared_tool_is_signed_and_shows_neither_address_nor_headers(strict: HttpTools) -> None:
    declared = spec("https://example.com/", headers={"x-key": "secret"})
    tool = strict.operator_tool(declared, Policy(timeout=3, results="text"))
    assert tool.signing_secret == SECRET
    assert tool.spec == ToolSpec("weather", "How it is outside.", SCHEMA)
    assert tool.policy == Policy(timeout=3, results="text")


@pytest.mark.parametrize(
    "sent", ['{"city": 3}', "{}", '{"city": "Oslo", "x": NaN}', '{"city": "Oslo", "n": ' + "1" * 5000 + "}"]
)
async def test_an_input_that_does_not_fit_is_not_sent(tools: HttpTools, service: Service, sent: str) -> None:
    outcome = await tools.request_tool(spec(service.url()))(CONTEXT, sent)
    assert outcome.kind == "bad_input"
    assert outcome.text.startswith("The input of weather is not right. ")
    assert service.requests == []


async def test_an_input_of_any_characters_arrives_as_it_was(tools: HttpTools, service: Service) -> None:
    service.answer("/", text="sunny")
    await tools.request_tool(spec(service.url()))(CONTEXT, r'{"city": "Tromsø \ud83d \u0000"}')
    assert json.loads(service.requests[0][3])["input"] == {"city": "Tromsø \ud83d \x00"}


async def test_cookies_are_not_kept(tools: HttpTools, service: Service) -> None:
    service.answer("/", text="sunny", headers={"set-cookie": "session=ada"})
    for _ in range(2):
        await run(tools.request_tool(spec(service.url(host="127.0.0.1"))))
    assert "cookie" not in service.requests[1][2]


# --- failures --------------------------------------------------------------------------------------------------------


async def test_the_text_of_a_bad_request_reaches_the_model(tools: HttpTools, service: Service) -> None:
    service.answer("/", status=404, text="No city Oslo for tok-123456.")
    outcome = await run(tools.request_tool(spec(service.url(), headers={"x-key": "tok-123456"}, read_only=True)))
    assert outcome == Outcome("weather answered 404 Not Found: No city Oslo for [hidden].", is_error=True)
    assert len(service.requests) == 1


async def test_a_service_that_fails_is_tried_again_and_then_unavailable(tools: HttpTools, service: Service) -> None:
    service.answer("/", status=503, text="panic at db-7.internal")
    outcome = await run(tools.request_tool(spec(service.url(), read_only=True)))
    assert outcome.kind == "unavailable"
    assert "503 Service Unavailable" in outcome.text
    assert "internal" not in outcome.text
    assert len(service.requests) == 2
    assert [headers["idempotency-key"] for _, _, headers, _ in service.requests] == [KEY, KEY]


async def test_an_unreachable_service_reveals_neither_address_nor_cause(tools: HttpTools) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with structlog.testing.capture_logs() as logs:
        outcome = await run(tools.request_tool(spec(f"http://127.0.0.1:{port}/?key=tok-123456")))
    assert outcome == Outcome("The tool weather cannot be reached at the moment.", kind="unavailable")
    assert {"event": "tool.unreachable", "log_level": "warning"}.items() <= logs[0].items()
    assert "tok-123456" not in str(logs)


async def test_a_connection_that_is_cut_is_a_service_that_is_away(tools: HttpTools, service: Service) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    service.paths["/"] = cut
    assert (await run(tools.request_tool(spec(service.url())))).kind == "unavailable"


async def test_the_log_of_a_malformed_answer_does_not_hold_the_url(tools: HttpTools) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"hello\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(mumble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with structlog.testing.capture_logs() as logs:
            outcome = await run(tools.request_tool(spec(f"http://127.0.0.1:{port}/?key=tok-123456")))
    assert outcome.kind == "unavailable"
    assert logs[0]["event"] == "tool.unreachable"
    assert "tok-123456" not in str(logs)


async def test_a_slow_answer_is_ended_by_the_timeout(tools: HttpTools, service: Service) -> None:
    given_up = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b".")
                await asyncio.sleep(0.01)
        finally:
            given_up.set()

    service.paths["/"] = drip
    outcome = await run(tools.request_tool(spec(service.url(), timeout=0.2)))
    assert outcome.kind == "timeout"
    await given_up.wait()


async def test_an_answer_without_end_is_not_read_to_it(tools: HttpTools, service: Service) -> None:
    given_up = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 100_000)
        finally:
            given_up.set()

    service.paths["/"] = flood
    outcome = await run(tools.request_tool(spec(service.url())))
    assert outcome == Outcome("The answer of weather was too long to be read. Ask for less.", is_error=True)
    await given_up.wait()


async def test_the_longest_answer_is_read(stack: AsyncExitStack, service: Service) -> None:
    tools = await stack.enter_async_context(_tools(["127.0.0.1"], max_answer_bytes=10))
    service.answer("/", text="x" * 10)
    assert await run(tools.request_tool(spec(service.url()))) == Outcome("x" * 10)
    service.answer("/", text="x" * 11)
    assert (await run(tools.request_tool(spec(service.url())))).is_error


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_not_unpacked(tools: HttpTools, service: Service, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    bomb = pack(b"0" * 200_000_000)
    service.answer("/", body=bomb, headers={"content-encoding": encoding})
    tracemalloc.start()
    try:
        outcome = await run(tools.request_tool(spec(service.url())))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome == Outcome("The answer of weather was too long to be read. Ask for less.", is_error=True)
    assert peak < 20_000_000


async def test_a_compressed_answer_is_decompressed(tools: HttpTools, service: Service) -> None:
    service.answer("/", body=gzip.compress(b"sunny"), headers={"content-encoding": "gzip"})
    assert await run(tools.request_tool(spec(service.url()))) == Outcome("sunny")


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "0x7f.1"])
async def test_a_name_that_resolves_to_an_internal_address_is_not_called(
    strict: HttpTools, service: Service, host: str
) -> None:
    """The host name is public, but resolves to an internal address when the client connects."""
    outcome = await run(strict.request_tool(spec(service.url(host=host, scheme="https"))))
    assert outcome.text == "The tool weather cannot be called: the URL leads to an internal address."
    assert outcome.kind == "error"


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0177.0.0.1"])
async def test_an_address_in_an_odd_spelling_is_refused(strict: HttpTools, service: Service, host: str) -> None:
    outcome = await run(strict.request_tool(spec(service.url(host=host, scheme="https"))))
    assert outcome.text == "The tool weather cannot be called: the URL is not valid."


async def test_a_name_can_be_allowed(stack: AsyncExitStack, service: Service) -> None:
    tools = await stack.enter_async_context(_tools(["localhost"]))
    service.answer("/", text="sunny")
    assert await run(tools.request_tool(spec(service.url(host="localhost")))) == Outcome("sunny")
    with pytest.raises(ValueError, match="internal"):
        tools.request_tool(spec(service.url(scheme="https")))


async def test_a_network_can_be_allowed_for_any_host_name(stack: AsyncExitStack, service: Service) -> None:
    tools = await stack.enter_async_context(_tools(["127.0.0.0/8"]))
    outcome = await run(tools.request_tool(spec(service.url(host="0x7f.1", scheme="https"))))
    assert outcome.kind == "unavailable"  # the connection succeeded, but the service does not speak TLS


async def test_a_declared_tool_may_be_internal_alone(strict: HttpTools, service: Service) -> None:
    service.answer("/", text="sunny")
    service.redirect("/elsewhere", "https://127.0.0.2/")
    assert await run(strict.operator_tool(spec(service.url()), Policy(), internal=True)) == Outcome("sunny")
    assert (await run(strict.operator_tool(spec(service.url("/elsewhere")), Policy(), internal=True))).is_error
    with pytest.raises(ValueError, match="https"):
        strict.operator_tool(spec(service.url()), Policy())


async def test_a_refusal_is_logged(strict: HttpTools, service: Service) -> None:
    with structlog.testing.capture_logs() as logs:
        await run(strict.request_tool(spec(service.url(host="localhost", scheme="https"))))
    assert logs[0]["event"] == "tool.refused"


# --- redirects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "method"), [(307, "POST"), (308, "POST"), (301, "GET"), (302, "GET"), (303, "GET")])
async def test_a_redirect_is_followed(tools: HttpTools, service: Service, status: int, method: str) -> None:
    service.redirect("/", "/there", status)
    service.answer("/there", text="sunny")
    tool = tools.operator_tool(spec(service.url(), headers={"x-key": "tok-123456"}), Policy())
    assert await run(tool) == Outcome("sunny")
    (_, _, _, sent), (then, _, headers, body) = service.requests
    assert then == method
    assert headers["x-key"] == "tok-123456"
    assert body == (sent if method == "POST" else b"")
    assert ("webhook-signature" in headers) == (method == "POST")


async def test_secrets_and_signature_do_not_go_to_another_origin(
    tools: HttpTools, service: Service, stranger: Service
) -> None:
    service.redirect("/", stranger.url())
    stranger.redirect("/", "/again")
    stranger.redirect("/again", service.url("/back"))
    service.answer("/back", text="sunny")
    headers = {"x-key": "tok-123456", "Authorization": "Bearer tok-123456"}
    tool = tools.operator_tool(spec(service.url(), headers=headers), Policy())
    assert await run(tool) == Outcome("sunny")
    for _, _, sent, body in (*stranger.requests, service.requests[1]):
        assert not {"x-key", "authorization", "webhook-id", "webhook-signature"} & {name.lower() for name in sent}
        assert json.loads(body)["input"] == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("https://169.254.169.254/latest/meta-data", "internal address"),
        ("https://[::1]/", "internal address"),
        ("http://example.com/", "https"),
        ("https://ada:word@example.com/", "user or a password"),
        ("file:///etc/passwd", "no URL"),
        ("https://[", "no URL"),
    ],
)
async def test_a_redirect_to_where_no_tool_may_be_is_refused(
    tools: HttpTools, service: Service, target: str, reason: str
) -> None:
    service.redirect("/", target)
    outcome = await run(tools.request_tool(spec(service.url())))
    assert outcome.text.startswith("The tool weather cannot be called: ")
    assert reason in outcome.text


async def test_a_redirect_to_a_name_of_an_internal_address_is_refused(stack: AsyncExitStack, service: Service) -> None:
    tools = await stack.enter_async_context(_tools(["localhost"]))
    service.redirect("/", service.url(host="0x7f.1", scheme="https"))
    outcome = await run(tools.request_tool(spec(service.url(host="localhost"))))
    assert outcome.text == "The tool weather cannot be called: the URL leads to an internal address."


async def test_redirects_end(tools: HttpTools, service: Service) -> None:
    service.redirect("/", "/")
    outcome = await run(tools.request_tool(spec(service.url())))
    assert outcome.text == "The tool weather cannot be called: it redirects too often."
    assert len(service.requests) == 4


async def test_a_redirect_to_nowhere_is_an_answer(tools: HttpTools, service: Service) -> None:
    service.answer("/", status=302)
    outcome = await run(tools.request_tool(spec(service.url())))
    assert outcome == Outcome("weather answered 302 Found.", is_error=True)


# --- declarations of requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (spec("https://10.0.0.1/"), "internal"),
        (spec("http://example.com/"), "https"),
        (spec("https://["), "not valid"),
        (spec("https://example.com", timeout=0), "timeout"),
        (spec("https://example.com", headers={"Host": "internal"}), "header Host is set"),
        (spec("https://example.com", headers={"Transfer-Encoding": "chunked"}), "header Transfer-Encoding is set"),
        (spec("https://example.com", headers={"Webhook-Signature": "v1,x"}), "header Webhook-Signature is set"),
        (spec("https://example.com", headers={"a b": "c"}), "'a b'"),
        (spec("https://example.com", headers={"x-key": "a\r\nhost: b"}), "line break"),
        (ToolSpec("a b", "", SCHEMA, http=HttpCall("https://example.com")), "letters, digits"),
        (spec("https://ada@example.com/"), "user or a password"),
        (ToolSpec("weather", "", SCHEMA), "needs a URL"),
    ],
)
async def test_an_invalid_declaration_is_refused_at_once(strict: HttpTools, declared: ToolSpec, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        strict.request_tool(declared)


async def test_a_valid_declaration_is_accepted(strict: HttpTools) -> None:
    strict.request_tool(spec("https://example.com/tool?x=1", headers={"Authorization": "Bearer ü", "x-key": ""}))


async def test_a_declared_tool_needs_a_schema(strict: HttpTools) -> None:
    with pytest.raises(ValueError, match="type object"):
        strict.operator_tool(ToolSpec("weather", "", "[]", http=HttpCall("https://example.com")), Policy())

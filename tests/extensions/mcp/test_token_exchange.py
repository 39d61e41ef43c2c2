"""`auth = "exchange"`: the server exchanges the caller's token for a token of a service (RFC 8693), and sends the
caller's token nowhere else.
"""

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import jwt
import pytest
import pytest_asyncio
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, listening
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.issuer import AUDIENCE, TestIssuer
from tests.support.openapi_document import Document
from tests.support.server_process import free_port
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.offers import Offers
from turnstream.extensions.mcp.servers import McpServers
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.outgoing.owner_tokens import HttpService
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions("mcp", "http_tools", "jwt")

CLIENT, SECRET = "turnstream-client", "s3cret"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


class ExchangeIssuer(TestIssuer):
    """An issuer that exchanges its own tokens if the client authenticates. `forms` lists the requests, and `good` lists
    the issued tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, str]] = []
        self.good: dict[str, tuple[str, str]] = {}  # for each token: its owner, and its audience or resource
        self.echo = False

    async def token_endpoint(self, request: Request) -> Response:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if kind != "Basic" or b64decode(sent).decode() != f"{CLIENT}:{SECRET}":
            return JSONResponse({"error": "invalid_client"}, 401)
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.forms.append(form)
        if form["grant_type"] != EXCHANGE or form["subject_token_type"] != ACCESS:
            return JSONResponse({"error": "unsupported_grant_type"}, 400)
        try:
            claims = jwt.decode(
                form["subject_token"], self.keys["first"][1].public_key(), algorithms=["RS256"], audience=AUDIENCE
            )
        except jwt.PyJWTError as error:
            return JSONResponse({"error": "invalid_request", "error_description": str(error)}, 400)
        if claims["sub"] == "mallory":
            described = f"not for the subject of {form['subject_token']}"
            return JSONResponse({"error": "invalid_target", "error_description": described}, 400)
        token = form["subject_token"] if self.echo else f"exchanged-{uuid4().hex}"
        self.good[token] = claims["sub"], form.get("audience", form.get("resource", ""))
        return JSONResponse(
            {"access_token": token, "issued_token_type": ACCESS, "token_type": "Bearer", "expires_in": 600}
        )

    async def describe(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "response_types_supported": ["code"],
            }
        )


@dataclass
class Service:
    """An HTTP tool and an MCP server, which both accept exchanged tokens. `seen` lists the token of each call."""

    url: str
    issuer: ExchangeIssuer
    seen: list[str] = field(default_factory=list)

    @property
    def http(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen.append(token)
        if token not in self.issuer.good:
            return JSONResponse({"error": "no token"}, 401, {"WWW-Authenticate": "Bearer"})
        owner, target = self.issuer.good[token]
        return JSONResponse({"text": f"found for {owner} at {target}"})

    async def verify_token(self, token: str) -> AccessToken | None:
        if token == LIST_TOKEN:
            return AccessToken(token=token, client_id="operator", scopes=["x"], resource=self.url)
        self.seen.append(token)
        if token not in self.issuer.good:
            return None
        return AccessToken(token=token, client_id=CLIENT, scopes=["x"], resource=self.url)

    @property
    def mcp(self) -> ASGIApp:
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(self.issuer.url),
            resource_server_url=AnyHttpUrl(self.url),
            required_scopes=["x"],
            validate_token_resource=True,
        )
        server = MCPServer("calendar", token_verifier=self, auth=auth)
        server.tool()(self.events)
        return server.streamable_http_app()

    async def events(self) -> str:
        """The events of today."""
        return "no events"


Places = tuple[ExchangeIssuer, Service, Service]


@dataclass
class Desk:
    server: Server
    issuer: ExchangeIssuer
    crm: Service
    calendar: Service
    document: Document
    key: str

    def client(self, **claims: Any) -> Client:
        return Client(self.server.url, self.document, self.issuer.token("first", **claims))

    async def result(self, client: Client, tool: str, **given: Any) -> str:
        reply = message_of(tool_use(tool, given, "c"))
        model = self.server.scripts.model(reply, message_of(text("Done.")))
        turn = await client.say(await client.chat(), model=model)
        await client.events(turn.stream_url)
        (block,) = [each for each in (await client.json("GET", turn.url))["blocks"] if each["type"] == "tool_result"]
        return json.dumps(block)


@asynccontextmanager
async def desk_at(
    database_url: str, document: Document, issuer: ExchangeIssuer, crm: Service, calendar: Service, key: str
) -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        mine: dict[str, Any] = {
            "issuer": issuer.url, "client_id": CLIENT, "client_secret": SECRET, "exchange": True
        }  # fmt: skip
        declared = McpServer(
            "calendar", url=calendar.url, headers={"Authorization": f"Bearer {LIST_TOKEN}"}, oauth=True, **mine
        )
        # The server `diary` has one list of tools per owner, which is read with the owner's token.
        diary = replace(declared, name="diary", headers={}, owner_tools=True)
        servers = await stack.enter_async_context(McpServers([declared, diary], McpTiming(connect_timeout=60)))
        http = await stack.enter_async_context(HttpTools(Allowed.of(["127.0.0.1"])))
        service = HttpService(crm.url.partition("://")[2], crm.url, audience="crm", **mine)
        spec = ToolSpec("find", "Finds.", '{"type": "object"}', http=HttpCall(f"{crm.url}/find"))
        tools = Toolset([http.operator_tool(spec, Policy(), service=service)], sources=[servers])
        server = await stack.enter_async_context(
            serving(
                database_url, tools, master_key=key, jwt_issuer=issuer.url, jwt_audience=AUDIENCE,
                login_scopes="read chat approve",
            )
        )  # fmt: skip
        yield Desk(server, issuer, crm, calendar, document, key)


@pytest_asyncio.fixture
async def places() -> AsyncIterator[Places]:
    async with places_with(Service) as places:
        yield places


@asynccontextmanager
async def places_with(calendar_of: Callable[[str, ExchangeIssuer], Service]) -> AsyncIterator[Places]:
    ports = free_port(), free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    issuer = ExchangeIssuer()
    issuer.add_key("first")
    issuer.url = urls[0]
    crm, calendar = Service(urls[1], issuer), calendar_of(f"{urls[2]}/mcp", issuer)
    routes = [
        Route("/token", issuer.token_endpoint, methods=["POST"]),
        Route("/.well-known/oauth-authorization-server", issuer.describe),
        Route("/{path:path}", issuer.answer),
    ]
    async with (
        listening(Starlette(routes=routes), ports[0]),
        listening(crm.http, ports[1]),
        listening(calendar.mcp, ports[2]),
    ):
        yield issuer, crm, calendar


@pytest_asyncio.fixture
async def desk(database_url: str, document: Document, places: Places) -> AsyncIterator[Desk]:
    async with desk_at(database_url, document, *places, new_master_key()) as desk:
        yield desk


async def test_the_token_of_the_caller_is_exchanged_once_and_never_sent_to_a_service(desk: Desk) -> None:
    async with desk.client() as ada:
        assert "found for ada at crm" in await desk.result(ada, "find")
        assert "found for ada at crm" in await desk.result(ada, "find")
        assert "no events" in await desk.result(ada, "calendar__events")
        (listed,) = [(await ada.json("GET", "/api/sign-ins"))["sign_ins"]]
        assert listed == []
    subjects = {form["subject_token"] for form in desk.issuer.forms}
    assert len(subjects) == 1
    assert [(form.get("audience"), form.get("resource")) for form in desk.issuer.forms] == [
        ("crm", None),
        (None, desk.calendar.url),
    ]
    assert subjects.isdisjoint({*desk.crm.seen, *desk.calendar.seen})
    async with desk.client(sub="bob") as bob:
        assert "found for bob at crm" in await desk.result(bob, "find")


async def test_the_tools_of_an_owner_are_listed_and_called_with_an_exchanged_token(
    desk: Desk, document: Document
) -> None:
    async with desk.client() as ada:
        assert "The events of today." in await desk.result(ada, "diary__find_tools")
        assert "no events" in await desk.result(ada, "diary__call_tool", name="events")
    assert [form["resource"] for form in desk.issuer.forms] == [desk.calendar.url]
    assert {desk.issuer.good[token][0] for token in desk.calendar.seen} == {"ada"}
    async with Client(desk.server.url, document, await desk.server.token("eve"), "eve") as eve:
        assert "needs a valid token of" in await desk.result(eve, "diary__find_tools")


async def test_a_refused_token_is_exchanged_again_once(desk: Desk) -> None:
    async with desk.client() as ada:
        await desk.result(ada, "find")
        desk.issuer.good.clear()
        assert "found for ada" in await desk.result(ada, "find")
    assert len(desk.issuer.forms) == 2


async def test_rows_have_no_token_in_plain_text_and_another_replica_can_use_them(
    desk: Desk, database_url: str, document: Document, places: Places
) -> None:
    async with desk.client() as ada:
        await desk.result(ada, "find")
        (subject,) = {form["subject_token"] for form in desk.issuer.forms}
        rows = await asyncpg.connect(database_url)
        lines = [row[0] for row in await rows.fetch("SELECT CAST(sign_ins AS text) FROM sign_ins")]
        await rows.close()
        assert lines
        for secret in (subject, subject.rpartition(".")[2], *desk.issuer.good):
            assert not any(secret in line for line in lines)
    async with desk_at(database_url, document, *places, desk.key) as other:
        token = await other.server.token("ada")  # a token that this server has issued cannot be exchanged
        async with Client(other.server.url, document, token, "ada") as ada:
            assert "found for ada at crm" in await other.result(ada, "find")


async def test_a_caller_without_a_token_of_the_issuer_gets_an_answer(desk: Desk, document: Document) -> None:
    async with Client(desk.server.url, document, await desk.server.token("eve"), "eve") as eve:
        for tool in ("find", "calendar__events"):
            assert "needs a valid token of" in await desk.result(eve, tool)
    assert (desk.crm.seen, desk.issuer.forms) == ([], [])


async def test_a_refusal_of_the_issuer_is_reported_without_the_token(desk: Desk) -> None:
    async with desk.client(sub="mallory") as mallory:
        result = await desk.result(mallory, "find")
    assert "gives the user no token" in result
    assert desk.issuer.forms[0]["subject_token"] not in result


async def test_an_issuer_that_gives_back_the_token_of_the_caller_is_refused(desk: Desk) -> None:
    desk.issuer.echo = True
    async with desk.client() as ada:
        assert "gives the user no token" in await desk.result(ada, "find")
    assert desk.crm.seen == []


async def expire(desk: Desk, database_url: str) -> None:
    """Lets the token of the caller ada expire, and clears the cache of exchanged tokens."""
    offers = desk.server.services.states["mcp"]
    assert isinstance(offers, Offers)
    assert offers.sign_ins is not None
    exchanges = offers.sign_ins.exchanges
    await exchanges.close()
    past = datetime(2020, 1, 1, tzinfo=UTC)
    rows = await asyncpg.connect(database_url)
    assert await rows.execute("UPDATE sign_ins SET pending_until = $1", past) == "UPDATE 1"
    await rows.close()
    exchanges._tokens.clear()
    exchanges._subjects["ada"] = replace(exchanges._subjects["ada"], until=past)


async def test_an_expired_token_is_not_exchanged(desk: Desk, database_url: str) -> None:
    async with desk.client() as ada:
        await desk.result(ada, "find")
        await expire(desk, database_url)
        assert "needs a valid token of" in await desk.result(ada, "find")
    assert len(desk.issuer.forms) == 1

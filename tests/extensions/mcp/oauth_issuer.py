"""A strict issuer of OAuth 2.1, and an MCP server that requires its tokens. Both run in the test process on real
sockets.

The issuer is written from the RFCs: PKCE with S256 only (7636), codes that can be used once, exact redirect URIs, the
`resource` of each token (8707), `iss` in its answers (9207), registration (7591), revocation (7009), and rotating
refresh tokens. If a refresh token is used twice, the issuer revokes all tokens of its family.
"""

import asyncio
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any
from urllib.parse import unquote, urlencode

import uvicorn
from mcp import types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.server_process import free_port

_PROTECTED = "/.well-known/oauth-protected-resource"
LIST_TOKEN = "operator-token"  # the operator's token, with which the server may only list tools


@dataclass
class Issued:
    """The tokens of one consent. Each refresh adds an access token and a refresh token, and only the last pair is
    valid.
    """

    subject: str
    client: str
    scopes: list[str]
    resource: str
    access: list[str] = field(default_factory=list)
    refresh: list[str] = field(default_factory=list)
    revoked: bool = False


class OAuthIssuer:
    """An issuer whose user `subject` consents to each request. If `subject` is None, each request is refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.subject: str | None = "ada"
        self.expires_in = 3600
        self.clients: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, tuple[dict[str, str], Issued]] = {}
        self.families: list[Issued] = []
        self.refreshes = 0
        self.refused: list[str] = []
        self.revocations: list[str] = []
        self.hold: asyncio.Event | None = None  # If set, refreshes wait for the event.
        self.holding = asyncio.Event()
        self.refreshed = asyncio.Event()
        self.is_away = False
        self.secrets: dict[str, str] = {}  # The secrets of clients that must authenticate, by client id.
        # If set, the issuer uses this function to read client metadata documents.
        self.fetch: Callable[[str], Awaitable[dict[str, Any]]] | None = None
        self.exchanging = asyncio.Event()
        self.hold_exchange: asyncio.Event | None = None  # If set, exchanges of codes wait for the event.
        self.answer: dict[str, Any] = {}  # These members replace members of a token response.
        self.refusal: tuple[int, Any] | None = None  # This status and body replace each token response.
        self.metadata: dict[str, Any] = {
            "issuer": url,
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
            "registration_endpoint": f"{url}/register",
            "revocation_endpoint": f"{url}/revoke",
            "response_types_supported": ["code"],
            "scopes_supported": ["calendar.read", "offline_access"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._describe),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/register", self._register, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ]
        )

    def family_of(self, access: str) -> Issued | None:
        """Returns the consent that the access token belongs to, if the token is valid now."""
        return next((each for each in self.families if not each.revoked and each.access[-1:] == [access]), None)

    def end_sessions(self) -> None:
        """Revokes all tokens, as an administrator of the issuer can do."""
        for family in self.families:
            family.revoked = True

    async def _describe(self, _: Request) -> Response:
        return JSONResponse(self.metadata)

    async def _register(self, request: Request) -> Response:
        sent = await request.json()
        id = f"client-{token_urlsafe(8)}"
        self.clients[id] = sent
        return JSONResponse({**sent, "client_id": id}, 201)

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        id, redirect = query.get("client_id", ""), query.get("redirect_uri", "")
        client = self.clients.get(id)
        if client is None and self.fetch is not None and id.startswith("https://"):
            found = await self.fetch(id)
            client = found if found.get("client_id") == id else None
        if client is None or redirect not in client["redirect_uris"]:
            # the issuer must never redirect to an unregistered address
            return Response("unknown client or redirect", 400)
        back = {"state": query["state"], "iss": self.url}
        wrong = query.get("response_type") != "code" or query.get("code_challenge_method") != "S256"
        if wrong or len(query.get("code_challenge", "")) != 43 or not query.get("resource"):
            return self._back(redirect, error="invalid_request", **back)
        if self.subject is None:
            return self._back(redirect, error="access_denied", **back)
        issued = Issued(self.subject, query["client_id"], query.get("scope", "").split(), query["resource"])
        code = token_urlsafe(16)
        self.codes[code] = query, issued
        return self._back(redirect, code=code, **back)

    def _back(self, redirect: str, **query: str) -> Response:
        return RedirectResponse(f"{redirect}?{urlencode(query)}", 302)

    async def _token(self, request: Request) -> Response:
        if self.is_away:
            return Response(status_code=503)
        form = {name: str(value) for name, value in (await request.form()).items()}
        if self.refusal is not None:
            status, body = self.refusal
            return JSONResponse(body(form) if callable(body) else body, status)
        if not self._authenticates(request, form):
            return self._refuse("invalid_client")
        match form.get("grant_type"):
            case "authorization_code":
                if self.hold_exchange is not None:
                    self.exchanging.set()
                    await self.hold_exchange.wait()
                return self._exchange(form)
            case "refresh_token":
                if self.hold is not None:
                    self.holding.set()
                    await self.hold.wait()
                return self._refresh(form)
            case _:
                return self._refuse("unsupported_grant_type")

    def _authenticates(self, request: Request, form: dict[str, str]) -> bool:
        """Checks the client's authentication. If the client has a secret, the header must contain its id and its secret
        (RFC 6749, 2.3.1).
        """
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if kind == "Basic" and "client_id" not in form:
            id, _, secret = b64decode(sent).decode().partition(":")
            form["client_id"] = unquote(id)
            return self.secrets.get(form["client_id"]) == unquote(secret)
        return not kind and form.get("client_id") not in self.secrets

    def _exchange(self, form: dict[str, str]) -> Response:
        query, issued = self.codes.pop(form.get("code", ""), ({}, None))
        challenge = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        same = all(form.get(name) == query.get(name) for name in ("client_id", "redirect_uri", "resource"))
        if issued is None or not same or challenge != query["code_challenge"]:
            return self._refuse("invalid_grant")
        self.families.append(issued)
        return self._issue(issued)

    def _refresh(self, form: dict[str, str]) -> Response:
        used = form.get("refresh_token", "")
        family = next((each for each in self.families if used in each.refresh), None)
        if family is None or family.revoked or form.get("client_id") != family.client:
            return self._refuse("invalid_grant")
        if used != family.refresh[-1]:
            family.revoked = True  # a used refresh token means that two parties have it
            return self._refuse("invalid_grant: reused")
        self.refreshes += 1
        self.refreshed.set()
        return self._issue(family)

    def _issue(self, family: Issued) -> Response:
        family.access.append(f"access-{token_urlsafe(16)}")
        family.refresh.append(f"refresh-{token_urlsafe(16)}")
        return JSONResponse(
            {
                "access_token": family.access[-1],
                "token_type": "Bearer",
                "expires_in": self.expires_in,
                "refresh_token": family.refresh[-1],
                "scope": " ".join(family.scopes),
                **self.answer,
            },
            headers={"Cache-Control": "no-store"},
        )

    def _refuse(self, error: str) -> Response:
        self.refused.append(error)
        return JSONResponse({"error": error.partition(":")[0]}, 400)

    async def _revoke(self, request: Request) -> Response:
        token = str((await request.form()).get("token", ""))
        self.revocations.append(token)
        for family in self.families:
            if token in (*family.access, *family.refresh):
                family.revoked = True
        return Response(status_code=200)


class Calendar:
    """An MCP server whose tools answer for the subject of the token. `seen` lists the token of each tool call."""

    def __init__(self, url: str, issuer: OAuthIssuer) -> None:
        self.url = f"{url}/mcp"
        self.issuer = issuer
        self.seen: list[str] = []
        self.calls = 0
        self.away = False  # If True, the server does not answer.
        self.hold: asyncio.Event | None = None  # If set, calls wait for the event.
        self.holding = asyncio.Event()
        self.protected: Mapping[str, Any] | Response | None = None  # replaces the server's metadata (RFC 9728)
        self.issuer_metadata: Mapping[str, Any] | None = None
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(issuer.url),
            resource_server_url=AnyHttpUrl(self.url),
            required_scopes=["calendar.read"],
            validate_token_resource=True,
        )
        # the tools of each subject; if None, all subjects have the same tools
        self.own_tools: dict[str, list[types.Tool]] | None = None
        self.lists = 0
        self._mcp = _ListingServer(self, auth)
        self._mcp.tool()(self.events)
        self._mcp.tool()(self.invite)

    def add_agenda(self) -> None:
        """Offers a prompt whose text depends on the subject of the token."""

        async def agenda() -> str:
            """What is on."""
            return f"The agenda of {self._subject()}"

        self._mcp.prompt()(agenda)

    @property
    def described(self) -> dict[str, Any]:
        """Returns the metadata of the server (RFC 9728)."""
        return {"resource": self.url, "authorization_servers": [self.issuer.url]}

    @property
    def app(self) -> ASGIApp:
        inner = self._mcp.streamable_http_app()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope.get("path", "")
            found = self.protected if path.startswith(_PROTECTED) else None
            if path == "/.well-known/oauth-authorization-server":
                found = self.issuer_metadata
            answer = found if found is None or isinstance(found, Response) else JSONResponse(found)
            answer = Response(status_code=503) if self.away else answer
            await (answer or inner)(scope, receive, send)

        return app

    async def verify_token(self, token: str) -> AccessToken | None:
        if token == LIST_TOKEN and self.own_tools is None:
            return AccessToken(token=token, client_id="operator", scopes=["calendar.read"], resource=self.url)
        family = self.issuer.family_of(token)
        if family is None:
            return None
        return AccessToken(
            token=token, client_id=family.client, scopes=family.scopes, resource=family.resource, subject=family.subject
        )

    async def events(self) -> str:
        """The events of today."""
        return f"events of {self._subject()}"

    async def invite(self, guest: str) -> str:
        """Invites a guest."""
        subject = self._subject()
        if self.hold is not None:
            self.holding.set()
            await self.hold.wait()
        return f"{subject} has invited {guest}"

    def _subject(self) -> str | None:
        token = get_access_token()
        assert token is not None
        self.calls += 1
        self.seen.append(token.token)
        return token.subject


class _ListingServer(MCPServer):
    """An MCP server that lists the tools for the subject of the token."""

    def __init__(self, calendar: Calendar, auth: AuthSettings) -> None:
        super().__init__("calendar", token_verifier=calendar, auth=auth)
        self._calendar = calendar

    async def list_tools(self) -> list[types.Tool]:
        self._calendar.lists += 1
        every, token = await super().list_tools(), get_access_token()
        if self._calendar.own_tools is None or token is None or token.subject is None:
            return every
        return self._calendar.own_tools[token.subject]


@dataclass
class Office:
    """An issuer, and the calendar that requires the issuer's tokens."""

    issuer: OAuthIssuer
    calendar: Calendar


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    ports = free_port(), free_port()
    issuer = OAuthIssuer(f"http://127.0.0.1:{ports[0]}")
    calendar = Calendar(f"http://127.0.0.1:{ports[1]}", issuer)
    async with listening(issuer.app, ports[0]), listening(calendar.app, ports[1]):
        yield Office(issuer, calendar)


@asynccontextmanager
async def listening(app: ASGIApp, port: int, host: str = "127.0.0.1") -> AsyncIterator[None]:
    config = uvicorn.Config(app, host=host, port=port, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    up = asyncio.Event()
    startup = server.startup

    async def started(sockets: Any = None) -> None:
        await startup(sockets)
        up.set()

    server.startup = started  # type: ignore[method-assign]
    task = asyncio.create_task(server._serve())
    await up.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await task

"""A strict OpenID provider over real HTTP, and a browser that signs in at the provider.

The provider follows the specifications: exact redirect URIs, PKCE only with S256, codes that can be used once, the
client's secret, and `iss` in its answers (RFC 9207). A test may forge the provider's messages.
"""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.support.http_server import answering
from tests.support.issuer import TestIssuer

CLIENT, SECRET = "turnstream", "a secret: of the client"
_EVENT = "http://schemas.openid.net/event/backchannel-logout"


@dataclass
class OpenIdIssuer(TestIssuer):
    """The provider. `person` has the claims of the person who is signed in at the provider, or is None. `forged`
    replaces claims of the next ID tokens, `answered` replaces parameters of its redirects, and `told` replaces members
    of its token answers.
    """

    __test__ = False

    person: dict[str, Any] | None = field(default_factory=lambda: {"sub": "ada", "name": "Ada"})
    secret: str | None = SECRET
    names_itself: bool = True
    redirect_uris: list[str] = field(default_factory=list)
    forged: dict[str, Any] = field(default_factory=dict)
    answered: dict[str, str] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] | None = None
    signing_key: str = "first"
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    ended: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.add_key("first")

    @property
    def metadata(self) -> dict[str, Any]:
        more = {} if self.userinfo is None else {"userinfo_endpoint": f"{self.url}/userinfo"}
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "end_session_endpoint": f"{self.url}/end",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.names_itself,
            **more,
        }

    async def answer(self, request: Request) -> Response:  # type: ignore[override]
        path = request.url.path
        if self.is_away or path == "/keys":
            return await super().answer(request)
        self.requests.append(path)
        match path:
            case "/authorize":
                return self._authorize(dict(request.query_params))
            case "/token":
                return await self._token(request)
            case "/userinfo":
                return JSONResponse(self.userinfo)
            case "/end":
                self.ended.append(dict(request.query_params))
                return RedirectResponse(request.query_params["post_logout_redirect_uri"])
            case _:
                return JSONResponse(self.metadata)

    def _authorize(self, query: dict[str, str]) -> Response:
        if query.get("client_id") != CLIENT or query.get("redirect_uri") not in self.redirect_uris:
            return Response("unknown client or redirect", 400)
        back = {"state": query["state"], **({"iss": self.url} if self.names_itself else {})}
        is_code = query.get("response_type") == "code" and "openid" in query.get("scope", "").split()
        if not is_code or query.get("code_challenge_method") != "S256" or len(query.get("code_challenge", "")) != 43:
            answer = {"error": "invalid_request", **back}
        elif self.person is None:
            answer = {"error": "access_denied", **back}
        else:
            code = token_urlsafe(16)
            self.codes[code] = query
            answer = {"code": code, **back}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({**answer, **self.answered})}")

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if self.secret is None:
            authenticates = not kind and form.get("client_id") == CLIENT
        else:
            id, _, secret = b64decode(sent).decode().partition(":")
            authenticates = kind == "Basic" and (unquote(id), unquote(secret)) == (CLIENT, self.secret)
        query = self.codes.pop(form.get("code", ""), None)
        proof = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        wrong = {
            "invalid_client": not authenticates,
            "unsupported_grant_type": form.get("grant_type") != "authorization_code",
            "invalid_grant": query is None
            or proof != query["code_challenge"]
            or form.get("redirect_uri") != query["redirect_uri"],
        }
        for error, happened in wrong.items():
            if happened:
                self.refused.append(error)
                return JSONResponse({"error": error}, 400)
        assert query is not None
        return JSONResponse(
            {"access_token": "access", "token_type": "Bearer", "id_token": self.id_token(query["nonce"]), **self.told}
        )

    def id_token(self, nonce: str) -> str:
        claims = {"aud": CLIENT, "sid": "desk", **(self.person or {}), "nonce": nonce, **self.forged}
        return self.token(self.signing_key, **claims)

    def logout_token(self, **claims: Any) -> str:
        usual = {"aud": CLIENT, "sid": "desk", "events": {_EVENT: {}}, "jti": token_urlsafe(8)}
        return self.token(self.signing_key, **{**usual, **claims})


@asynccontextmanager
async def providing(*redirect_uris: str) -> AsyncIterator[OpenIdIssuer]:
    issuer = OpenIdIssuer(redirect_uris=list(redirect_uris))
    async with answering(Starlette(routes=[Route("/{path:path}", issuer.answer, methods=["GET", "POST"])])) as url:
        issuer.url = url
        yield issuer


class CookieBrowser:
    """A browser that keeps cookies, and sends requests as a page of the server's own origin does."""

    def __init__(self, base: str) -> None:
        self.http = httpx2.AsyncClient(base_url=base, headers={"Sec-Fetch-Site": "same-origin"}, timeout=30)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    def cookie(self, name: str = "turnstream_session") -> str | None:
        return self.http.cookies.get(name)

    async def begin(self, to: str = "", **query: str) -> str:
        """Begins a sign-in. Returns the address of the callback to which the provider sends the browser."""
        started = await self.http.get("/login", params={"to": to, **query})
        assert started.status_code == 303, started.text
        async with httpx2.AsyncClient() as elsewhere:  # the provider gets no cookie of the server
            answered = await elsewhere.get(started.headers["location"])
        assert answered.status_code == 307, answered.text
        return str(answered.headers["location"])

    async def sign_in(self, to: str = "", **query: str) -> httpx2.Response:
        return await self.http.get(await self.begin(to, **query))

    async def status(self, path: str = "/api/chats") -> int:
        return (await self.http.get(path)).status_code


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

"""Sends the requests to an OpenID provider, and checks its answers: code flow with PKCE (OpenID Connect Core 1.0).

Redirects are not followed; answers are limited in size and time.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import httpx2
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, RSAKey

from turnstream.api.http.errors import Unavailable
from turnstream.extensions.login.issuers import LoginFailed, LoginIssuer
from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.issuer_keys import IssuerKeys, check_key_url, claim_of

# Only algorithms with a public key: a server that checks signatures by a shared key could also sign with that key.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 512_000
_LEEWAY: Final = 30  # seconds by which the clocks of issuer and server may differ
_LONGEST_TOKEN: Final = 65_536
_LATEST: Final = 253_370_764_800  # the year 9999
_LEAST_RSA_BITS: Final = 2048
_LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_OLDEST_LOGOUT: Final = 300  # maximum seconds since the token was issued

Claims = Mapping[str, Any]


class OpenIdProvider:
    """The client with which a running server sends requests to one issuer."""

    def __init__(self, issuer: LoginIssuer, redirect_uri: str) -> None:
        self.issuer = issuer
        self._redirect_uri = redirect_uri
        self._http = httpx2.AsyncClient(timeout=5.0, follow_redirects=False)
        self._keys = IssuerKeys(issuer.url, None, self._http)

    async def close(self) -> None:
        await self._keys.close()
        await self._http.aclose()

    async def configuration(self) -> Claims:
        """Returns the issuer's OpenID configuration. Raises LoginFailed."""
        try:
            found = await self._keys.configuration()
            check_configuration(found)
        except (Unavailable, ValueError) as error:
            raise LoginFailed(f"Nobody can sign in at {self.issuer.title} now: {error}") from None
        return found

    async def begin(self, state: str, nonce: str, verifier: str) -> str:
        """Returns the address at which the person signs in. Raises LoginFailed."""
        endpoint = (await self.configuration())["authorization_endpoint"]
        async with self._client({}) as client:
            url, _ = client.create_authorization_url(endpoint, state=state, code_verifier=verifier, nonce=nonce)
        return cast("str", url)

    async def complete(self, code: str, nonce: str, verifier: str, iss: str | None) -> tuple[Claims, str]:
        """Exchanges the code, and returns the claims about the person, and the ID token. Raises LoginFailed."""
        about = await self.configuration()
        needs_iss = about.get("authorization_response_iss_parameter_supported") is True
        if iss != self.issuer.url and (iss is not None or needs_iss):
            raise LoginFailed(f"The answer is not of {self.issuer.title}, which was asked.")
        try:
            async with asyncio.timeout(_TIMEOUT), self._client(about) as client:
                token = await client.fetch_token(
                    about["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=verifier
                )
        except AuthlibBaseError as error:
            raise LoginFailed(f"{self.issuer.title} refused the login: {error.error}.") from None
        except (httpx2.HTTPError, TimeoutError, ValueError, TypeError, AttributeError) as error:
            raise LoginFailed(f"{self.issuer.title} gave an unusable answer: {type(error).__name__}.") from None
        id_token, access = (token.get(name) for name in ("id_token", "access_token"))
        if not isinstance(id_token, str) or not isinstance(access, str):
            raise LoginFailed(f"{self.issuer.title} sent no ID token.")
        claims = await self._verified(id_token, nonce=nonce, access=access)
        wanted = {self.issuer.owner_claim, self.issuer.groups_claim or "sub"}
        url = about.get("userinfo_endpoint")
        if isinstance(url, str) and any(claim_of(claims, name) is None for name in wanted):
            more = await self._userinfo(url, access)
            if more.get("sub") != claims["sub"]:  # OpenID Connect Core 1.0, 5.3.2
                raise LoginFailed(f"{self.issuer.title} sent the claims of another person.")
            claims = {**more, **claims}
        return claims, id_token

    async def logout_claims(self, token: str) -> Claims:
        """Returns the claims of a logout token, with which the issuer ends sessions (Back-Channel Logout 1.0). Raises
        LoginFailed.
        """
        claims = await self._decoded(token)
        events: Any = claims.get("events")
        issued: Any = claims.get("iat")
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict) or "nonce" in claims:
            raise LoginFailed("The token is none for a logout.")
        audience = claims.get("aud")
        if self.issuer.client_id not in (audience if isinstance(audience, list) else [audience]):
            raise LoginFailed("The token is for another client.")
        if claims.get("iss") != self.issuer.url:
            raise LoginFailed("The token is of another issuer.")
        if type(issued) not in {int, float} or abs(CLOCK.seconds() - issued) > _OLDEST_LOGOUT:
            raise LoginFailed("The token is not valid at this time.")
        if not any(isinstance(claims.get(name), str) for name in ("sub", "sid")):
            raise LoginFailed("The token must have `sub` or `sid`.")
        return claims

    def _client(self, about: Claims) -> AsyncOAuth2Client:
        """Returns a client of the library for a single login, because the client stores the tokens that it receives."""
        issuer = self.issuer
        method = "none"
        if issuer.client_secret is not None:
            offered = about.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            method = "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"
        return AsyncOAuth2Client(
            issuer.client_id,
            issuer.client_secret,
            token_endpoint_auth_method=method,
            scope=issuer.scope,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            timeout=5.0,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bounded]},
        )

    async def _userinfo(self, url: str, access: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {access}", "Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            check_key_url(url)
            async with (
                asyncio.timeout(_TIMEOUT),
                httpx2.AsyncClient(timeout=5.0, event_hooks={"response": [_bounded]}) as client,
            ):
                response = await client.get(url, headers=headers)
                response.raise_for_status()
            return msgspec.json.decode(response.content, type=dict[str, Any])
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise LoginFailed(f"{self.issuer.title} sent no claims: {type(error).__name__}.") from None

    async def _verified(self, token: str, nonce: str, access: str) -> Claims:
        """Returns the claims of an ID token, after a check that the token belongs to this login. Raises LoginFailed."""
        header: dict[str, Any] = {}
        claims = await self._decoded(token, header)
        options = {
            "iss": {"essential": True, "value": self.issuer.url},
            "aud": {"essential": True, "value": self.issuer.client_id},
        }
        params = {"nonce": nonce, "client_id": self.issuer.client_id, "access_token": access}
        times = [claims[name] for name in ("exp", "iat", "nbf") if name in claims]
        if not all(type(each) in {int, float} and 0 <= each <= _LATEST for each in times):
            raise LoginFailed(f"{self.issuer.title} sent an ID token whose times are no numbers.")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise LoginFailed(f"{self.issuer.title} sent an ID token of nobody.")
        try:
            CodeIDToken(dict(claims), header, options, params).validate(int(CLOCK.seconds()), _LEEWAY)
        except (JoseError, ValueError, TypeError) as error:
            raise LoginFailed(f"{self.issuer.title} sent an ID token that is not valid: {error}") from None
        return claims

    async def _decoded(self, token: str, header: dict[str, Any] | None = None) -> Claims:
        """Returns the claims of a token, after a check of its signature. Copies the token's header into `header`, if
        given. Raises LoginFailed.
        """
        wrong = f"{self.issuer.title} sent a token that is not valid"
        if len(token) > _LONGEST_TOKEN:
            raise LoginFailed(f"{wrong}: it is too long.")
        try:
            sent = jws.extract_compact(token.encode()).headers()
            algorithm, id = sent.get("alg"), sent.get("kid")
            if algorithm not in ALGORITHMS:
                raise LoginFailed(f"{wrong}: it is signed by {algorithm!r}.")
            jwk = await self._keys.find(id if isinstance(id, str) else None)
            if jwk is None or jwk.get("alg", algorithm) != algorithm:
                raise LoginFailed(f"{wrong}: its key is none of the issuer's.")
            key = JWKRegistry.import_key(dict(jwk))
            if isinstance(key, RSAKey) and key.public_key.key_size < _LEAST_RSA_BITS:
                raise LoginFailed(f"{wrong}: its key has less than {_LEAST_RSA_BITS} bits.")
            claims = jwt.decode(token, key, algorithms=[algorithm]).claims
        except Unavailable as error:
            raise LoginFailed(str(error)) from None
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise LoginFailed(f"{wrong}: {error}") from None
        if header is not None:
            header.update(sent)
        return claims


async def check_provider(issuer: LoginIssuer) -> str:
    """Describes the features of an issuer. Raises ValueError if sign-ins at the issuer are impossible."""
    async with httpx2.AsyncClient(timeout=5.0, follow_redirects=False) as client:
        keys = IssuerKeys(issuer.url, None, client)
        found = await keys.read()
        about = keys.known_configuration
    check_configuration(about)
    if not found:
        raise ValueError("it has no key for signatures")
    methods = about.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise ValueError("it does not offer PKCE with S256")
    logout = "" if "end_session_endpoint" in about else ", without a logout of its own"
    return f"{issuer.url} has {len(found)} {'key' if len(found) == 1 else 'keys'}{logout}"


def check_configuration(about: Claims) -> None:
    """Raises ValueError if the configuration lacks the address for sign-ins or for tokens."""
    for name in ("authorization_endpoint", "token_endpoint"):
        if not isinstance(about.get(name), str):
            raise ValueError(f"its configuration has no `{name}`")
        check_key_url(about[name])


class _BoundedAnswer(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > _MOST_BYTES:
                raise httpx2.DecodingError(f"the answer has more than {_MOST_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bounded(response: httpx2.Response) -> None:
    """Limits the size of the body before it is read. Refuses a compressed body, because a small body could expand to a
    large one.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedAnswer(response.stream)

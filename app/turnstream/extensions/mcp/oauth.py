"""OAuth 2.1 for MCP servers: finds the issuer, registers a client, and requests tokens.

No request reaches an internal address unless the operator has configured its host. Redirects are not followed, answers
are limited in size and time, and an issuer's data must match the request.
"""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx2
from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, PKCEParameters
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_registration_request,
    extract_field_from_www_auth,
    get_client_metadata_scopes,
    handle_registration_response,
    issuers_match,
    validate_authorization_response_iss,
)
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyUrl
from yarl import URL

from turnstream.extensions.mcp.declared import McpServer
from turnstream.libraries.outgoing.addresses import AddressRefused, Allowed, UrlRefused
from turnstream.libraries.outgoing.owner_tokens import OAuthResource

_TIMEOUT: Final = 20.0  # seconds for a complete answer; the lease of a refresh is longer
_MOST_BYTES: Final = 1_000_000  # maximum bytes of an answer
_CHUNK: Final = 65_536
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,32768}")  # the characters that a header can contain (RFC 6750)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, 3.3
_MOST_SCOPES: Final = 100
_LONGEST_LIFE: Final = 10 * 365 * 86_400  # maximum seconds that a token lives
_MOST_REASON: Final = 300  # maximum characters of an issuer's message
_GRANTS: Final = ["authorization_code", "refresh_token"]
_ACCEPT: Final = {"Accept": "application/json"}
# A request without a token. The server refuses the request, and the refusal names the server's metadata.
_PROBE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "turnstream", "version": "1"},
    },
}


class SignInFailed(Exception):
    """A sign-in cannot start or be completed. The text is a sentence for the person."""


class TokensRefused(Exception):
    """The issuer no longer accepts the refresh token."""


class IssuerUnavailable(Exception):
    """The issuer gave no answer, or an invalid one. The tokens may still be valid."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The refusal of an MCP server, with the scopes that it requires, and the URL of its metadata. If `insufficient`,
    the token is valid, but lacks scopes.
    """

    scopes: tuple[str, ...] = ()
    metadata_url: str | None = None
    insufficient: bool = False


def challenge_of(response: httpx2.Response) -> Challenge | None:
    """Returns the challenge of a response; None if a sign-in could not change the response."""
    insufficient = response.status_code == 403 and _field(response, "error") == "insufficient_scope"
    if response.status_code != 401 and not insufficient:
        return None
    scopes = scopes_of((_field(response, "scope") or "").split())
    return Challenge(scopes, _field(response, "resource_metadata"), insufficient)


_field: Final = extract_field_from_www_auth


def scopes_of(words: Iterable[str]) -> tuple[str, ...]:
    """Returns the words that are valid scopes, without repetitions, up to a maximum number."""
    return tuple(dict.fromkeys(word for word in words if _SCOPE.fullmatch(word)))[:_MOST_SCOPES]


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """The registration of this server at an issuer. `method` is how the client authenticates at the token endpoint."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"


@dataclass(frozen=True, slots=True)
class McpIssuer:
    """The issuer of an MCP server, as discovered for one sign-in. `resource` is the address for which tokens are
    issued.
    """

    metadata: OAuthMetadata
    resource: str
    scopes: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.metadata.issuer)


@dataclass(frozen=True, slots=True)
class Pending:
    """The state of a started sign-in, which its callback needs. It is stored encrypted. `cookie` is the digest of a
    cookie. `actor` is the person who started the sign-in for the owner, if that is another person.
    """

    metadata: dict[str, Any]
    client: OAuthClient
    resource: str
    scopes: tuple[str, ...]
    verifier: str = field(repr=False)
    redirect_uri: str
    cookie: str
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class OAuthTokens:
    """The tokens of an owner for one server, and all data that are needed to use, refresh and revoke them. They are
    stored encrypted.
    """

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    expires_in: int | None
    scopes: tuple[str, ...]
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None
    client: OAuthClient
    resource: str


class OAuth:
    """Sends the OAuth requests of one process. `base` is the public address of this server. Connections stay open until
    `close`.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self._sessions: dict[bool, ClientSession] = {}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    @property
    def redirect_uri(self) -> str:
        return f"{self.base}/sign-in/callback"

    @property
    def document_url(self) -> str:
        """The address of the client metadata document, which is the client id at issuers that read such documents."""
        return f"{self.base}/sign-in/client.json"

    def client_metadata(self) -> OAuthClientMetadata:
        return OAuthClientMetadata(
            redirect_uris=[AnyUrl(self.redirect_uri)],
            token_endpoint_auth_method="none",  # noqa: S106
            grant_types=_GRANTS,
            application_type="web" if self.base.startswith("https:") else "native",
            client_name="turnstream",
        )

    # --- discovery ---------------------------------------------------------------------------------------------------

    async def discover(self, server: OAuthResource, wanted: Sequence[str]) -> McpIssuer:
        """Finds the issuer of a server. `wanted` are the scopes that the server has requested. Raises SignInFailed."""
        assert server.url is not None
        # An HTTP tool is not probed, because the request could have an effect.
        challenge = await self._probe(server, server.url) if isinstance(server, McpServer) else Challenge()
        protected = await self._resource_metadata(server, server.url, challenge.metadata_url)
        resource = resource_url_from_server_url(server.url)
        if protected is not None:
            if not check_resource_allowed(resource, str(protected.resource)):
                raise SignInFailed(f"The metadata of {server.name} are about another server: {protected.resource}.")
            resource = str(protected.resource)
        metadata = await self._issuer_metadata(server, _issuer_of(server, protected))
        scopes = tuple(server.scopes) or tuple(wanted) or challenge.scopes
        if not scopes:
            scopes = scopes_of((get_client_metadata_scopes(None, protected, metadata, _GRANTS) or "").split())
        return McpIssuer(metadata, resource, scopes)

    async def _probe(self, server: OAuthResource, url: str) -> Challenge:
        headers = {"Accept": "application/json, text/event-stream"}
        response = await self._send(server, httpx2.Request("POST", url, json=_PROBE, headers=headers), body=False)
        return challenge_of(response) or Challenge()

    async def _resource_metadata(
        self, server: OAuthResource, url: str, named: str | None
    ) -> ProtectedResourceMetadata | None:
        """Returns the metadata of a server; None if the server has none, because it is older than RFC 9728. Metadata on
        a host other than the server's are ignored.
        """
        here = urlsplit(url)
        for address in build_protected_resource_metadata_discovery_urls(named, url):
            there = urlsplit(address)
            if (there.scheme, there.netloc) != (here.scheme, here.netloc):
                continue
            response = await self._send(server, httpx2.Request("GET", address, headers=_ACCEPT))
            if response.status_code == 200:
                try:
                    return ProtectedResourceMetadata.model_validate_json(response.content)
                except ValueError:
                    continue
        return None

    async def _issuer_metadata(self, server: OAuthResource, issuer: str | None, *, pkce: bool = True) -> OAuthMetadata:
        assert server.url is not None
        if issuer is not None:
            _check_address(server, "issuer", issuer)
        # If the resource has no metadata, the server is its own issuer.
        expected = issuer or _origin(server.url)
        for address in build_oauth_authorization_server_metadata_discovery_urls(issuer, server.url):
            response = await self._send(server, httpx2.Request("GET", address, headers=_ACCEPT))
            if response.status_code != 200:
                continue
            try:
                metadata = OAuthMetadata.model_validate_json(response.content)
            except ValueError:
                continue
            if not issuers_match(str(metadata.issuer), expected):
                raise SignInFailed(f"The issuer of {server.name} names itself {metadata.issuer}, and not {expected}.")
            if pkce and "S256" not in (metadata.code_challenge_methods_supported or ()):
                raise SignInFailed(f"The issuer {metadata.issuer} does not offer PKCE with S256, which is required.")
            for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"):
                if (endpoint := getattr(metadata, name)) is not None:
                    _check_address(server, name, str(endpoint))
            return metadata
        raise SignInFailed(f"{server.name} names no issuer whose metadata can be read.")

    # --- token exchange ----------------------------------------------------------------------------------------------

    async def exchange(self, server: OAuthResource, subject: str) -> tuple[str, int | None, tuple[str, ...]]:
        """Exchanges the token of a caller (RFC 8693). Returns an access token, the seconds that it lives, and its
        scopes. Raises TokensRefused, IssuerUnavailable, and SignInFailed.
        """
        assert server.url is not None
        assert server.client_id is not None
        metadata = await self._issuer_metadata(server, server.issuer, pkce=False)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": subject,
            "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        if server.audience is None:
            form["resource"] = resource_url_from_server_url(server.url)
        else:
            form["audience"] = server.audience
        if server.scopes:
            form["scope"] = " ".join(server.scopes)
        client = OAuthClient(server.client_id, server.client_secret, _method_of(metadata, server.client_secret))
        token = await self._token(server, str(metadata.token_endpoint), form, client)
        if token.access_token == subject:
            raise TokensRefused("It gave back the token of the caller, which no other server may get.")
        scopes = server.scopes if token.scope is None else scopes_of(token.scope.split())
        return token.access_token, token.expires_in, scopes

    # --- the flow ----------------------------------------------------------------------------------------------------

    async def client_for(self, server: OAuthResource, issuer: McpIssuer) -> OAuthClient:
        """Returns the client that the settings name, else the client of the metadata document, else a newly registered
        client. Raises SignInFailed.
        """
        metadata = issuer.metadata
        if server.client_id is not None:
            return OAuthClient(server.client_id, server.client_secret, _method_of(metadata, server.client_secret))
        if metadata.client_id_metadata_document_supported and self.base.startswith("https:"):
            return OAuthClient(self.document_url)
        if metadata.registration_endpoint is None:
            raise SignInFailed(
                f"The issuer {issuer.name} registers no clients: the operator must set `client_id` for {server.name}."
            )
        sent = self.client_metadata().model_copy(update={"scope": " ".join(issuer.scopes) or None})
        response = await self._send(server, create_client_registration_request(metadata, sent, issuer.name))
        try:
            known = await handle_registration_response(response)
        except OAuthRegistrationError as error:
            raise SignInFailed(f"The issuer {issuer.name} refused to register a client: {_short(str(error))}") from None
        secret = known.client_secret
        method = known.token_endpoint_auth_method or _method_of(metadata, secret)
        return OAuthClient(known.client_id, secret, "none" if secret is None else method)

    def begin(
        self, issuer: McpIssuer, client: OAuthClient, state: str, cookie: str, actor: str | None = None
    ) -> tuple[str, Pending]:
        """Returns the address at which the person consents, and the state that the callback needs."""
        proof = PKCEParameters.generate()
        query = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": self.redirect_uri,
            "state": state,
            "code_challenge": proof.code_challenge,
            "code_challenge_method": "S256",
            "resource": issuer.resource,
        }
        if issuer.scopes:
            query["scope"] = " ".join(issuer.scopes)
        if "offline_access" in issuer.scopes:  # OpenID Connect requires this prompt for a refresh token
            query["prompt"] = "consent"
        address = str(issuer.metadata.authorization_endpoint)
        url = f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(query)}"
        metadata = issuer.metadata.model_dump(mode="json", exclude_none=True)
        verifier, resource = proof.code_verifier, issuer.resource
        return url, Pending(metadata, client, resource, issuer.scopes, verifier, self.redirect_uri, cookie, actor)

    async def complete(self, server: OAuthResource, pending: Pending, code: str, iss: str | None) -> OAuthTokens:
        """Exchanges the code of a callback for tokens. Raises SignInFailed."""
        metadata = OAuthMetadata.model_validate(pending.metadata)
        try:
            validate_authorization_response_iss(iss, metadata)
        except OAuthFlowError:
            raise SignInFailed(f"The answer is not of the issuer {metadata.issuer}, which was asked.") from None
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "resource": pending.resource,
        }
        try:
            token = await self._token(server, str(metadata.token_endpoint), form, pending.client)
        except TokensRefused as error:
            raise SignInFailed(f"The issuer {metadata.issuer} refused the code: {error}") from None
        except IssuerUnavailable as error:
            raise SignInFailed(str(error)) from None
        revocation = metadata.revocation_endpoint
        return OAuthTokens(
            access_token=token.access_token,
            refresh_token=token.refresh_token,
            expires_in=token.expires_in,
            scopes=pending.scopes if token.scope is None else scopes_of(token.scope.split()),
            issuer=str(metadata.issuer),
            token_endpoint=str(metadata.token_endpoint),
            revocation_endpoint=None if revocation is None else str(revocation),
            client=pending.client,
            resource=pending.resource,
        )

    async def refresh(self, server: OAuthResource, grant: OAuthTokens) -> OAuthTokens:
        """Returns the grant with new tokens. Raises TokensRefused, and IssuerUnavailable."""
        if (used := grant.refresh_token) is None:
            raise TokensRefused("There is no refresh token.")
        if grant.client.id == server.client_id:  # the operator may have changed the secret
            grant = replace(grant, client=replace(grant.client, secret=server.client_secret))
        form = {"grant_type": "refresh_token", "refresh_token": used, "resource": grant.resource}
        token = await self._token(server, grant.token_endpoint, form, grant.client)
        return replace(
            grant,
            access_token=token.access_token,
            refresh_token=token.refresh_token or used,
            expires_in=token.expires_in,
            scopes=grant.scopes if token.scope is None else scopes_of(token.scope.split()),
        )

    async def revoke(self, server: OAuthResource, grant: OAuthTokens) -> bool:
        """Revokes the tokens at the issuer (RFC 7009). Returns False if the issuer offers no revocation, or has not
        confirmed it.
        """
        if grant.revocation_endpoint is None:
            return False
        done = True
        for kind, token in (("refresh_token", grant.refresh_token), ("access_token", grant.access_token)):
            if token is not None:
                form = {"token": token, "token_type_hint": kind}
                try:
                    response = await self._post(server, grant.revocation_endpoint, form, grant.client)
                except SignInFailed:
                    return False
                done = done and response.status_code == 200
        return done

    async def _token(self, server: OAuthResource, url: str, form: Mapping[str, str], client: OAuthClient) -> OAuthToken:
        try:
            response = await self._post(server, url, form, client)
        except SignInFailed as error:
            raise IssuerUnavailable(str(error)) from None
        if response.status_code in {400, 401, 403} and (reason := _error_of(response)) is not None:
            for name in ("code", "refresh_token", "code_verifier", "subject_token"):
                reason = reason.replace(form.get(name) or "\0", "…")  # an issuer may repeat the data of the request
            raise TokensRefused(_short(reason))
        if response.status_code != 200:
            raise IssuerUnavailable(f"{_host(url)} answered with status {response.status_code}.")
        try:
            token = OAuthToken.model_validate_json(response.content)
        except ValueError:
            raise IssuerUnavailable(f"{_host(url)} sent an answer that has no tokens.") from None
        if not all(_TOKEN.fullmatch(each) for each in (token.access_token, token.refresh_token) if each is not None):
            raise IssuerUnavailable(f"{_host(url)} sent a token that is too long, or that no header can hold.")
        life = None if token.expires_in is None else min(max(0, token.expires_in), _LONGEST_LIFE)
        return token.model_copy(update={"expires_in": life})

    async def _post(
        self, server: OAuthResource, url: str, form: Mapping[str, str], client: OAuthClient
    ) -> httpx2.Response:
        sent, headers = dict(form), dict(_ACCEPT)
        if client.secret is not None and client.method == "client_secret_basic":
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            sent["client_id"] = client.id
            if client.secret is not None:
                sent["client_secret"] = client.secret
        return await self._send(server, httpx2.Request("POST", url, data=sent, headers=headers))

    async def _send(self, server: OAuthResource, request: httpx2.Request, *, body: bool = True) -> httpx2.Response:
        """Sends a request. Raises SignInFailed if its address is internal, or if the answer is missing or too long."""
        url, host = URL(str(request.url), encoded=True), _host(str(request.url))
        session = self._session(is_free=_allowed(server).allows_host(url.host or ""))
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                session.request(
                    request.method, url, data=request.content, headers=request.headers, allow_redirects=False
                ) as response,
            ):
                content = bytearray()
                if body:
                    async for piece in response.content.iter_chunked(_CHUNK):
                        content += piece
                        if len(content) > _MOST_BYTES:
                            raise SignInFailed(f"{host} sent more than {_MOST_BYTES:,} bytes.")
                else:
                    response.close()
        except ClientConnectorError as error:
            refused = isinstance(error.os_error, AddressRefused)
            reason = "its address is internal; see `issuer`" if refused else type(error).__name__
            raise SignInFailed(f"{host} cannot be reached ({reason}).") from None
        except (ClientError, ValueError, OSError) as error:  # its message may contain an address with secrets
            raise SignInFailed(f"{host} cannot be reached ({type(error).__name__}).") from None
        headers = {name: value for name, value in response.headers.items() if name.lower() != "content-encoding"}
        return httpx2.Response(response.status, headers=headers, content=bytes(content), request=request)

    def _session(self, *, is_free: bool) -> ClientSession:
        """Returns one of two pools. Connections to the operator's hosts are not checked, so requests to other hosts
        must not reuse them. In the other pool, an address is checked after the lookup of the host's name, so that the
        name cannot lead to another address in between.
        """
        if (session := self._sessions.get(is_free)) is None:
            guard: Mapping[str, Any] = {} if is_free else {"socket_factory": Allowed().open_socket}
            session = ClientSession(
                connector=TCPConnector(**guard),
                cookie_jar=DummyCookieJar(),
                timeout=ClientTimeout(total=None),
                headers={"user-agent": "turnstream"},
            )
            self._sessions[is_free] = session
        return session


def _issuer_of(server: OAuthResource, protected: ProtectedResourceMetadata | None) -> str | None:
    """Returns the issuer that the settings name, else the first issuer in the metadata of the server, else None."""
    named = [] if protected is None else [str(each) for each in protected.authorization_servers]
    if server.issuer is None:
        return named[0] if named else None
    if named and not any(issuers_match(each, server.issuer) for each in named):
        raise SignInFailed(f"{server.name} names the issuer {named[0][:200]}, and not {server.issuer} of the settings.")
    return server.issuer


def _allowed(server: OAuthResource) -> Allowed:
    """Returns the allowed addresses. Only the hosts of the server and of its configured issuer may be internal."""
    allowed = Allowed()
    for address in (server.url, server.issuer):
        if address is not None and (host := urlsplit(address).hostname) is not None:
            allowed = allowed.with_host(host)
    return allowed


def _check_address(server: OAuthResource, name: str, address: str) -> None:
    """Raises SignInFailed if the address is not allowed. Tokens and codes must be sent over TLS, unless the server
    itself is reached without TLS.
    """
    assert server.url is not None
    try:
        _allowed(server).check(URL(address))
        if urlsplit(address).scheme != "https" and urlsplit(server.url).scheme != "http":
            raise UrlRefused("the URL must begin with https://")
    except ValueError as error:
        raise SignInFailed(f"The {name} of {server.name} is refused: {error}. It is {address[:200]}.") from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _method_of(metadata: OAuthMetadata, secret: str | None) -> str:
    """Returns how a client authenticates if its registration does not define this. If the issuer names no methods, the
    default of RFC 8414 applies.
    """
    offered = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    if secret is None:
        return "none"
    return "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"


def _error_of(response: httpx2.Response) -> str | None:
    """Returns the error text of an issuer's refusal; None if another sender has answered, for example a proxy."""
    try:
        answer = json.loads(response.content)
    except ValueError:
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("error"), str):
        return None
    return ": ".join(str(answer[name]) for name in ("error", "error_description") if answer.get(name))


def _short(words: str) -> str:
    words = words[:_MOST_REASON].strip()
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _host(url: str) -> str:
    return urlsplit(url).netloc or "the address"

"""Authenticates browsers by short-lived tokens in the URL or in a cookie, because an `EventSource` or a link cannot
send a header.
"""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from turnstream.api.identity.authenticator import URL_PARAMETER, bearer_token
from turnstream.api.identity.stored import StoredTokens
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.libraries.logins import check_origin_of_cookie
from turnstream.storage.owners.tokens import BROWSER_TOKEN


@dataclass(frozen=True, slots=True)
class TokensInBrowsers:
    """Authenticates only tokens that POST /api/tokens has created. If `in_urls` is true, a token that may only read is
    also accepted in the URL of a stream. `cookie` is the name of the cookie. The cookie is accepted only from pages of
    this server's origin and of `origins`, because browsers send cookies with requests from any page.
    """

    stored: StoredTokens
    in_urls: bool
    cookie: str | None
    origins: Collection[str]

    async def identity_of(self, request: Request) -> Identity | None:
        if bearer_token(request) is not None:
            return None
        if self.in_urls and (token := _taken_from_url(request)):
            return await self._in_url(request, token)
        if self.cookie and (token := request.cookies.get(self.cookie)):
            return await self._in_cookie(request, token)
        return None

    async def _in_url(self, request: Request, token: str) -> Identity:
        endpoint = request.state.endpoint
        if endpoint.method != "GET" or not endpoint.is_stream:
            raise Unauthorized(f"`{URL_PARAMETER}` is for streams alone; send `Authorization: Bearer TOKEN`.")
        identity = await self._short_lived(token)
        if identity.scopes != {"read"}:  # browser histories and proxy logs store addresses
            raise Unauthorized(
                f'A token in `{URL_PARAMETER}` must only read: create the token with `"scopes": ["read"]`.'
            )
        return identity

    async def _in_cookie(self, request: Request, token: str) -> Identity:
        check_origin_of_cookie(request, str(self.cookie), self.origins)
        return await self._short_lived(token)

    async def _short_lived(self, token: str) -> Identity:
        identity = await self.stored.of_token(token)
        if not (identity.credential or "").startswith(BROWSER_TOKEN):
            raise Unauthorized("Only a short-lived token of POST /api/tokens is accepted in an address or a cookie.")
        return identity


def _taken_from_url(request: Request) -> str | None:
    """Returns the token in the address, and removes it from the address, so that no later log contains the token. The
    token is kept for later checks of the running stream.
    """
    found: str | None = getattr(request.state, URL_PARAMETER, None)
    query = request.scope["query_string"].decode("latin-1")
    if URL_PARAMETER not in query:
        return found
    members = parse_qsl(query, keep_blank_values=True)
    request.scope["query_string"] = urlencode([each for each in members if each[0] != URL_PARAMETER]).encode()
    request.state.access_token = next((value for name, value in members if name == URL_PARAMETER), found)
    return request.state.access_token or None

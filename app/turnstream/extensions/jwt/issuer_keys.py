"""The public keys of an issuer (JWKS, RFC 7517): fetched over HTTP, remembered, fetched again when they rotate."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import httpx2
import msgspec
import structlog

from turnstream.api.http.errors import Unavailable

log = structlog.get_logger(__name__)

# Seconds. Keys are fetched again when they are older than this; a key that was withdrawn is accepted that long.
_AGE: Final = 300.0
# Between two fetches, however many tokens name keys that nobody has.
_PAUSE: Final = 10.0
# For so long keys are used while the issuer cannot be reached.
_LONGEST_AGE: Final = 3600.0
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 512_000
_MOST_KEYS: Final = 100

Jwk = Mapping[str, Any]


class IssuerKeys:
    """`url` is the key set's address; without it the issuer's OpenID configuration names it. `generation` grows with
    each change of the keys.
    """

    def __init__(self, issuer: str, url: str | None, client: httpx2.AsyncClient) -> None:
        self._issuer = issuer
        self._url = url
        self._client = client
        self._keys: tuple[Jwk, ...] = ()
        self.generation = 0
        self._fetched_at = self._tried_at = -_LONGEST_AGE
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, id: str | None) -> Jwk | None:
        """The key with this id; without an id the only key. None if the issuer has no such key. Raises Unavailable
        while the keys are not known.
        """
        self.keep_fresh()
        if self._find(id) is None and (self._is_fetching or time.monotonic() >= self._tried_at + _PAUSE):
            await asyncio.shield(self._fetch())
        if time.monotonic() >= self._fetched_at + _LONGEST_AGE:
            raise Unavailable(f"The keys of {self._issuer} cannot be fetched; try again.")
        return self._find(id)

    def keep_fresh(self) -> None:
        """Fetches old keys again. No request waits for it."""
        now = time.monotonic()
        if now >= self._fetched_at + _AGE and now >= self._tried_at + _PAUSE:
            self._fetch()

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching

    @property
    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    def _find(self, id: str | None) -> Jwk | None:
        if id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == id), None)

    def _fetch(self) -> asyncio.Task[None]:
        """One fetch for all waiting callers."""
        if self._fetching is None or self._fetching.done():
            self._tried_at = time.monotonic()
            self._fetching = asyncio.create_task(self._fetch_keys())
        return self._fetching

    async def _fetch_keys(self) -> None:
        try:
            keys = await self.read()
        except ValueError as error:
            log.warning("issuer.unavailable", issuer=self._issuer, error=str(error))
            return
        self._fetched_at = time.monotonic()
        if keys != self._keys:
            self._keys, self.generation = keys, self.generation + 1
            log.info("issuer.keys", issuer=self._issuer, keys=[key.get("kid") for key in keys])

    async def read(self) -> tuple[Jwk, ...]:
        """The keys as the issuer has them now. Raises ValueError."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._read_keys()
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    async def _read_keys(self) -> tuple[Jwk, ...]:
        url = self._url
        if url is None:
            about = await self._read_json(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if about.get("issuer") != self._issuer:
                raise ValueError(f"the configuration is that of the issuer {about.get('issuer')!r}")
            url = str(about.get("jwks_uri"))
        check_key_url(url)
        keys = (await self._read_json(url)).get("keys")
        if not isinstance(keys, list) or len(keys) > _MOST_KEYS:
            raise ValueError(f"`keys` of {url} must be a list of at most {_MOST_KEYS} keys")
        return tuple(key for key in keys if isinstance(key, dict) and key.get("use", "sig") == "sig")

    async def _read_json(self, url: str) -> dict[str, Any]:
        body = b""
        async with self._client.stream("GET", url, headers={"Accept": "application/json"}) as response:
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"{url} has more than {_MOST_BYTES} bytes")
        return msgspec.json.decode(body, type=dict[str, Any])


async def keys_of(issuer: str, url: str | None) -> tuple[Jwk, ...]:
    """The keys of an issuer, asked for once. Raises ValueError."""
    async with httpx2.AsyncClient(timeout=5.0, follow_redirects=False) as client:
        return await IssuerKeys(issuer, url, client).read()


def check_key_url(url: str) -> None:
    """Raises ValueError for a URL over which an attacker could put in keys of their own."""
    parsed = httpx2.URL(url)
    if parsed.scheme != "https" and parsed.host not in {"localhost", "127.0.0.1", "::1"}:
        raise ValueError(f"{url} must begin with https://, unless it is on this machine")

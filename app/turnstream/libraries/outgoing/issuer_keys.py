"""Fetches an issuer's configuration and public keys (JWKS, RFC 7517) over HTTP, caches them, and fetches the keys again
after a rotation. Reads claims of the issuer's tokens.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import httpx2
import msgspec
import structlog

from turnstream.api.http.errors import Unavailable
from turnstream.domain.errors import ConfigError

log = structlog.get_logger(__name__)

# Seconds. Older keys are fetched again, so a withdrawn key is accepted for up to this time.
_AGE: Final = 300.0
# Least number of seconds between two fetches, even if many tokens have unknown keys.
_PAUSE: Final = 10.0
# Seconds for which fetched keys are used while the issuer is unreachable.
_LONGEST_AGE: Final = 3600.0
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 512_000
_MOST_KEYS: Final = 100
# Claims that users can often change: a user who chooses another user's name would become that owner here.
_MUTABLE: Final = frozenset({"email", "name", "nickname", "preferred_username", "upn", "unique_name", "phone_number"})

Jwk = Mapping[str, Any]


class IssuerKeys:
    """The public keys of an issuer. `url` is the address of the key set; if it is None, the issuer's OpenID
    configuration names the address. `generation` grows with each change of the keys.
    """

    def __init__(self, issuer: str, url: str | None, client: httpx2.AsyncClient) -> None:
        self._issuer = issuer
        self._url = url
        self._client = client
        self._keys: tuple[Jwk, ...] = ()
        self.known_configuration: Mapping[str, Any] = {}
        self.generation = 0
        self._fetched_at = self._tried_at = -_LONGEST_AGE
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, id: str | None) -> Jwk | None:
        """Returns the key with this id; if `id` is None, the issuer's only key. Returns None if the issuer has no such
        key. Raises Unavailable while the keys are unknown.
        """
        self.keep_fresh()
        if (self._is_too_old or self._find(id) is None) and (
            self._is_fetching or time.monotonic() >= self._tried_at + _PAUSE
        ):
            await asyncio.shield(self._fetch())
        self._check_known()
        return self._find(id)

    async def configuration(self) -> Mapping[str, Any]:
        """Returns the OpenID configuration, which is empty if the address of the keys was configured. Raises
        Unavailable while the configuration is unknown.
        """
        self.keep_fresh()
        if self._is_too_old and self._is_fetching:
            await asyncio.shield(self._fetch())
        self._check_known()
        return self.known_configuration

    def _check_known(self) -> None:
        if self._is_too_old:
            raise Unavailable(f"The keys of {self._issuer} cannot be fetched; try again.")

    def keep_fresh(self) -> None:
        """Starts to fetch the keys again if they are old. Requests do not wait for this fetch."""
        now = time.monotonic()
        if now >= self._fetched_at + _AGE and now >= self._tried_at + _PAUSE:
            self._fetch()

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching

    @property
    def _is_too_old(self) -> bool:
        return time.monotonic() >= self._fetched_at + _LONGEST_AGE

    @property
    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    def _find(self, id: str | None) -> Jwk | None:
        if id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == id), None)

    def _fetch(self) -> asyncio.Task[None]:
        """Returns the running fetch, or starts a fetch: all waiting callers share one fetch."""
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
        """Returns the issuer's present keys. Raises ValueError."""
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
            url, self.known_configuration = str(about.get("jwks_uri")), about
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


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Returns the claim with this name, such as `https://example.org/roles`, or else the claim at this path, such as
    `realm_access.roles`.
    """
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def texts_of(claim: object) -> tuple[str, ...]:
    """Returns the texts of a claim. A claim is a list of texts, or one text with spaces between its parts, such as
    `scope`.
    """
    if isinstance(claim, str):
        return tuple(claim.split())
    return tuple(each for each in claim if isinstance(each, str)) if isinstance(claim, list) else ()


def check_owner_claim(setting: str, claim: str, is_fixed: bool, remedy: str | None = None) -> None:
    """Raises ConfigError for a claim that users can change, unless the operator has declared it fixed."""
    if claim.rpartition(".")[2] in _MUTABLE and not is_fixed:
        raise ConfigError(
            f"{setting} is {claim}. At many issuers, users can change it, and become another owner here: use `sub`,"
            f" or set {remedy or f'{setting}_IS_FIXED=true'} if this issuer never gives one value to two users."
        )


async def keys_of(issuer: str, url: str | None) -> tuple[Jwk, ...]:
    """Fetches the keys of an issuer once. Raises ValueError."""
    async with httpx2.AsyncClient(timeout=5.0, follow_redirects=False) as client:
        return await IssuerKeys(issuer, url, client).read()


def check_key_url(url: str) -> None:
    """Raises ValueError for a URL that lets an attacker insert keys."""
    parsed = httpx2.URL(url)
    if parsed.scheme != "https" and parsed.host not in {"localhost", "127.0.0.1", "::1"}:
        raise ValueError(f"{url} must begin with https://, unless it is on this machine")

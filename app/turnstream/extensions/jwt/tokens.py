"""JSON web tokens (RFC 7519) of an issuer such as Auth0, Clerk, Keycloak or Supabase."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from json import loads
from typing import Any, Final

import httpx2
import jwt
from starlette.requests import Request

from turnstream.api.caller import SUBJECT_TOKEN
from turnstream.api.identity.authenticator import bearer_token
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.kit.clock import CLOCK
from turnstream.libraries.logins import LoginScopes, identity_from
from turnstream.libraries.outgoing.issuer_keys import IssuerKeys, Jwk, claim_of, texts_of

# The permitted algorithms, each with the type of its keys. Each algorithm uses a private and a public key: with a
# shared key, every server that checks tokens could also issue them, and a public key could be mistaken for a shared
# key.
KEY_TYPES: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
_LONGEST_TOKEN: Final = 16_384
_MOST_REMEMBERED: Final = 10_000
# This module checks these claims itself, because the library does not use the database's clock, and does not support
# several audiences.
_OPTIONS: Final[jwt.types.Options] = {
    "require": ["exp", "iss"],
    "verify_aud": False,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
_LATEST: Final = 253_370_764_800  # the year 9999: later times cannot be written as dates
_LEAST_RSA_BITS: Final = 2048


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer, and the names of the claims that its tokens have. A name of a claim may be a path with dots. `leeway`
    is in seconds. The header of a token must have the `typ` that `type` names. The names of the issuer's owners begin
    with `prefix`.
    """

    name: str
    audiences: frozenset[str]
    scopes: LoginScopes
    algorithms: frozenset[str]
    keys_url: str | None = None
    audience_claim: str = "aud"
    owner_claim: str = "sub"
    roles_claim: str | None = None
    plan_claim: str | None = None
    cell_claim: str | None = None
    leeway: float = 30.0
    type: str | None = None
    prefix: str = ""


class JwtTokens:
    """Authenticates tokens of one issuer. Verified tokens are cached until the issuer's keys change."""

    def __init__(self, issuer: Issuer, keys: IssuerKeys) -> None:
        self._issuer = issuer
        self._keys = keys
        self._known: dict[str, Identity] = {}
        self._known_generation = 0

    async def identity_of(self, request: Request) -> Identity | None:
        token = bearer_token(request)
        if token is None or token.count(".") != 2:
            return None
        self._keys.keep_fresh()
        if self._known_generation != self._keys.generation or len(self._known) >= _MOST_REMEMBERED:
            self._known, self._known_generation = {}, self._keys.generation
        identity = self._known.get(token)
        if identity is None:
            identity = self._identity_of(await self._claims_of(token))
            self._known[token] = identity
        SUBJECT_TOKEN.set(token)
        return identity

    async def _claims_of(self, token: str) -> Mapping[str, Any]:
        if len(token) > _LONGEST_TOKEN:
            raise Unauthorized(f"The token of `Authorization` must have at most {_LONGEST_TOKEN} characters.")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise Unauthorized(f"The token of `Authorization` is no JSON web token: {error}.") from None
        algorithm, id, type = header.get("alg"), header.get("kid"), str(header.get("typ", "")).lower()
        expected = (self._issuer.type or "").lower()
        if expected and type.removeprefix("application/") != expected:
            raise Unauthorized(f"The token must have the type {self._issuer.type} (`typ` of its header).")
        if not isinstance(algorithm, str) or algorithm not in self._issuer.algorithms:
            allowed = ", ".join(sorted(self._issuer.algorithms))
            raise Unauthorized(f"The token is signed by {algorithm!r}; the server takes {allowed}.")
        key = await self._keys.find(id)
        if key is None:
            raise Unauthorized(f"The token is signed by a key that {self._issuer.name} does not have: {id!r}.")
        try:
            return self._verified(token, algorithm, key)
        except (jwt.PyJWTError, ValueError) as error:
            raise Unauthorized(f"The token of `Authorization` is not valid: {error}.") from None

    def _verified(self, token: str, algorithm: str, key: Jwk) -> Mapping[str, Any]:
        """Returns the claims of the token. The key, not the token, determines the algorithm. Raises ValueError and the
        exceptions of the library.
        """
        if key.get("kty") != KEY_TYPES[algorithm] or key.get("alg", algorithm) != algorithm:
            raise ValueError(f"its key is not one for {algorithm}")
        public = jwt.PyJWK(dict(key), algorithm).key
        if KEY_TYPES[algorithm] == "RSA" and public.key_size < _LEAST_RSA_BITS:
            raise ValueError(f"its key has {public.key_size} bits; RSA needs {_LEAST_RSA_BITS}")
        jwt.decode(
            token,
            public,
            algorithms=[algorithm],
            issuer=self._issuer.name,
            options=_OPTIONS,
        )
        # If a token has two claims with the same name, the library uses the second claim, but another server may use
        # the first.
        payload = jwt.utils.base64url_decode(token.split(".")[1]).decode()
        claims: Mapping[str, Any] = loads(payload, object_pairs_hook=_unique)
        if claims.get("typ") == "ID" or not claims.keys().isdisjoint({"at_hash", "c_hash"}):
            raise ValueError("it is an ID token, which is for the client; send the access token")
        self._check_times(claims)
        sent = claim_of(claims, self._issuer.audience_claim)
        named = sent if isinstance(sent, list) else [sent]
        if not any(isinstance(each, str) and each in self._issuer.audiences for each in named):
            raise ValueError(f"it is for another audience (`{self._issuer.audience_claim}` is {sent!r})")
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """Raises ValueError if the token has expired, or is not valid yet."""
        now, leeway = CLOCK.seconds(), self._issuer.leeway
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(type(time) in {int, float} and 0 <= time <= _LATEST for time in times.values()):
            raise ValueError("`exp`, `nbf` and `iat` must be seconds as numbers, of a date before the year 9999")
        if times["exp"] <= now - leeway:
            raise ValueError("it has expired")
        if max(times.get("nbf", 0), times.get("iat", 0)) > now + leeway:
            raise ValueError("it is not yet valid")

    def _identity_of(self, claims: Mapping[str, Any]) -> Identity:
        issuer = self._issuer
        cell = claim_of(claims, issuer.cell_claim) if issuer.cell_claim else None
        roles = texts_of(claim_of(claims, issuer.roles_claim)) if issuer.roles_claim else ()
        plan = claim_of(claims, issuer.plan_claim) if issuer.plan_claim else None
        return identity_from(
            claim_of(claims, issuer.owner_claim),
            issuer.scopes.of(roles),
            expires_at=datetime.fromtimestamp(claims["exp"] + issuer.leeway, UTC),
            credential=f"jwt:{claims['jti']}" if "jti" in claims else None,
            plan=plan if isinstance(plan, str) else None,
            cell=cell if isinstance(cell, str) else None,
            prefix=issuer.prefix,
            roles=frozenset(roles),
        )


@asynccontextmanager
async def open_jwt_tokens(issuer: Issuer) -> AsyncIterator[JwtTokens]:
    """Opens the authentication of tokens. The keys are fetched when the first token arrives, so that a server starts
    even if its issuer is unreachable.
    """
    async with httpx2.AsyncClient(timeout=5.0, follow_redirects=False) as client:
        keys = IssuerKeys(issuer.name, issuer.keys_url, client)
        try:
            yield JwtTokens(issuer, keys)
        finally:
            await keys.close()


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members as a dictionary. Raises ValueError if a name is repeated."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a claim of it is repeated")
    return found

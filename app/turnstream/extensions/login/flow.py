"""The flow of a login, which begins and ends in the same browser, and creates a session there."""

import asyncio
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps, loads
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from uuid import UUID

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity, checked_scopes
from turnstream.extensions.login.issuers import LoginFailed, LoginIssuer, Logins
from turnstream.extensions.login.sessions import CREATE_SESSION, END_SESSION, END_SESSIONS_OF_ISSUER, digest_of
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.libraries.logins import LoginScopes, identity_from
from turnstream.libraries.outgoing.issuer_keys import claim_of, texts_of
from turnstream.storage.database import Database

# The library is imported only if there is an issuer, because the import takes a tenth of a second.

PENDING_LIFE: Final = 600  # seconds that a person may spend at the issuer
# The target after a login: a page of this server, and a chat on it, if any. Other targets are refused, so that no link
# leads through a login to a foreign page.
WAY_BACK: Final = re.compile(r"(admin)?(#[\w/-]{0,200})?", re.ASCII)
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A started login, stored only in a cookie of the browser."""

    issuer: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    to: str
    at: float

    @property
    def key(self) -> str:
        """A part of the cookie's name, because several tabs may sign in at once."""
        return key_of(self.state)

    def encoded(self) -> str:
        values = [self.issuer, self.state, self.nonce, self.verifier, self.to, self.at]
        return urlsafe_b64encode(dumps(values).encode()).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> "PendingLogin | None":
        try:
            issuer, state, nonce, verifier, to, at = loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, TypeError, RecursionError):
            return None
        fits = all(isinstance(each, str) for each in (issuer, state, nonce, verifier, to)) and type(at) in {int, float}
        return cls(issuer, state, nonce, verifier, to, at) if fits and WAY_BACK.fullmatch(to) else None


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session: the value of its cookie, its owner, and the page that the browser opens next."""

    cookie: str = field(repr=False)
    identity: Identity
    id_token: str = field(repr=False)
    to: str


class LoginFlow:
    """Begins, completes and ends logins at all issuers. Connections stay open until `run` is cancelled."""

    def __init__(self, database: Database, logins: Logins, scopes: LoginScopes) -> None:
        from turnstream.extensions.login.provider import OpenIdProvider  # noqa: PLC0415

        self.logins = logins
        self._database = database
        self._scopes = scopes
        self.providers: Mapping[str, OpenIdProvider] = {
            name: OpenIdProvider(issuer, f"{logins.base}/login/callback/{name}")
            for name, issuer in logins.issuers.items()
        }

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for provider in self.providers.values():
                await provider.close()

    async def begin(self, issuer: str, to: str) -> tuple[str, PendingLogin]:
        """Returns the issuer's address, and the pending login for the browser. Raises LoginFailed."""
        state, nonce, verifier = token_urlsafe(32), token_urlsafe(32), token_urlsafe(48)
        url = await self.providers[issuer].begin(state, nonce, verifier)
        return url, PendingLogin(issuer, state, nonce, verifier, to, CLOCK.seconds())

    async def complete(
        self, pending: PendingLogin, state: str, code: str, iss: str | None, before: str | None
    ) -> OpenedSession:
        """Creates a session, and ends the earlier session whose cookie is `before`. Raises LoginFailed."""
        if not hmac.compare_digest(pending.state.encode(), state.encode()):
            raise LoginFailed("This login was not begun in this browser.")
        if not 0 <= CLOCK.seconds() - pending.at + 1 <= PENDING_LIFE:
            raise LoginFailed("This login took too long.")
        provider = self.providers[pending.issuer]
        claims, id_token = await provider.complete(code, pending.nonce, pending.verifier, iss)
        identity = self._identity(provider.issuer, claims)
        secret = token_urlsafe(32)
        row = await self._database.row(
            CREATE_SESSION,
            id=new_id(),
            owner=identity.owner,
            hash=digest_of(secret),
            state=digest_of(state),
            issuer=provider.issuer.url,
            subject=claims["sub"],
            sid=claims["sid"] if isinstance(claims.get("sid"), str) else None,
            name=_name_of(claims),
            scopes=checked_scopes(identity.scopes),
            roles=sorted(identity.roles),
            plan=identity.plan,
            life=self.logins.life,
            before=digest_of(before) if before else None,
        )
        if row is None:
            raise LoginFailed("This login was completed already.")
        return OpenedSession(secret, identity, id_token, pending.to)

    async def end(self, identity: Identity, id: UUID) -> str | None:
        """Ends a session of the owner. Returns the name of its issuer; None if the session had ended already, or if the
        settings no longer have the issuer.
        """
        row = await self._database.row(END_SESSION, id=id, owner=identity.owner)
        return (
            None
            if row is None
            else next((name for name, issuer in self.logins.issuers.items() if issuer.url == row["issuer"]), None)
        )

    async def end_by_issuer(self, issuer: str, token: str) -> int:
        """Ends the sessions that a logout token of the issuer names. Returns their number. Raises LoginFailed."""
        provider = self.providers[issuer]
        claims = await provider.logout_claims(token)
        sid, subject = claims.get("sid"), claims.get("sub")
        rows = await self._database.rows(
            END_SESSIONS_OF_ISSUER,
            issuer=provider.issuer.url,
            subject=subject if isinstance(subject, str) else None,
            sid=sid if isinstance(sid, str) else None,
        )
        return len(rows)

    def _identity(self, issuer: LoginIssuer, claims: Mapping[str, Any]) -> Identity:
        """Returns the identity of the person. Raises LoginFailed if the person has no scope."""
        groups = texts_of(claim_of(claims, issuer.groups_claim)) if issuer.groups_claim else ()
        plan = next((plan for group, plan in self.logins.plans.items() if group in groups), None)
        try:
            identity = identity_from(
                claim_of(claims, issuer.owner_claim),
                self._scopes.of(groups),
                plan=plan,
                prefix=issuer.prefix,
                roles=frozenset(groups),
            )
        except Unauthorized as error:
            raise LoginFailed(str(error)) from None
        if not identity.scopes:
            raise LoginFailed("Your account is valid, but none of your groups may use this server.")
        return identity


def logout_address(about: Mapping[str, Any], issuer: LoginIssuer, back: str, id_token: str | None) -> str | None:
    """Returns the address at which the issuer ends its own session (RP-Initiated Logout 1.0); None if it has no such
    address.
    """
    endpoint = about.get("end_session_endpoint")
    if not isinstance(endpoint, str) or urlsplit(endpoint).scheme not in {"http", "https"}:
        return None
    query = {"client_id": issuer.client_id, "post_logout_redirect_uri": back}
    if id_token:
        query["id_token_hint"] = id_token
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"


def key_of(state: str) -> str:
    return digest_of(state).hex()[:16]


def _name_of(claims: Mapping[str, Any]) -> str | None:
    """Returns the person's name for display; None if the claims contain no name."""
    for claim in ("name", "preferred_username", "email"):
        name = claims.get(claim)
        if isinstance(name, str) and name.strip() and name.isprintable():
            return name.strip()[:_LONGEST_NAME]
    return None

"""Token exchange (RFC 8693): an issuer exchanges the token of a caller for a token that a service accepts. The caller
and the service use the same issuer.

The newest token of each caller is stored in a row, encrypted, because turns run later and on other replicas. Tokens for
services stay in memory until they expire.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from secrets import token_bytes
from time import monotonic
from typing import Final

import structlog

from turnstream.api.caller import SUBJECT_TOKEN
from turnstream.domain.errors import CannotOpen, StorageError
from turnstream.domain.identity import Identity
from turnstream.extensions.mcp.oauth import IssuerUnavailable, OAuth, SignInFailed, TokensRefused
from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.owner_tokens import NoTokenNow, OAuthResource, Token
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.storage.database import OF_REQUEST, Database, Statement

log = structlog.get_logger(__name__)

_CALLER: Final = ""  # no server has this name: it marks the row of the caller's own token
_UNKNOWN_LIFE: Final = 60.0  # seconds of a token's life if the issuer sends none
_EARLY: Final = 30.0  # a token is replaced this many seconds before it expires
_MOST_KEPT: Final = 10_000

# The `state` of such a row is random and never sent, so no callback can contain it.
STORE_SUBJECT = Statement(
    f"""
    INSERT INTO sign_ins (owner, server, state, pending, pending_until)
    VALUES (:owner, '{_CALLER}', :state, :pending, :until)
    ON CONFLICT (owner, server) DO UPDATE SET pending = EXCLUDED.pending, pending_until = EXCLUDED.pending_until
    WHERE sign_ins.pending_until <= EXCLUDED.pending_until RETURNING owner
    """
)
GET_SUBJECT = Statement(
    f"SELECT pending, pending_until FROM sign_ins WHERE owner = :owner AND server = '{_CALLER}' AND pending IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The token of a caller, which expires at `until`."""

    token: str = field(repr=False)
    until: datetime


class TokenExchanges:
    """Exchanges the tokens of callers. Owns a task for each token that is being stored, until `close`."""

    def __init__(self, database: Database, keys: OwnerKeys, oauth: OAuth) -> None:
        self._database = database
        self._keys = keys
        self._oauth = oauth
        self._subjects: dict[str, _Subject] = {}
        self._tokens: dict[tuple[str, str], tuple[Token, float]] = {}
        self._versions = count(1)
        self._storing: set[asyncio.Task[None]] = set()

    # --- tokens of callers -------------------------------------------------------------------------------------------

    def note(self, identity: Identity, changes: bool) -> None:
        """Stores the token of the request, unless the stored token expires later. The token of a credential with fewer
        rights than its owner is not stored, because the owner's other turns would use it.
        """
        token, until = SUBJECT_TOKEN.get(), identity.expires_at
        if token is None or until is None or not changes or identity.is_bound:
            return
        known = self._subjects.get(identity.owner)
        if known is not None and (known.token == token or known.until > until):
            return
        if len(self._subjects) >= _MOST_KEPT:
            self._subjects.clear()  # the rows still have the tokens
        subject = self._subjects[identity.owner] = _Subject(token, until)
        task = asyncio.create_task(self._store(identity.owner, subject))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(self, owner: str, subject: _Subject) -> None:
        OF_REQUEST.set(False)
        try:
            key = await self._keys.find_or_create(owner)
            sealed = key.seal(subject.token, "subject_token")
            await self._database.row(
                STORE_SUBJECT, owner=owner, state=token_bytes(32), pending=sealed, until=subject.until
            )
        except StorageError as error:  # the token is forgotten, so that the next request stores it again
            self._subjects.pop(owner, None)
            log.warning("mcp.subject_not_stored", owner=owner, error=str(error))

    async def _subject(self, owner: str) -> _Subject | None:
        """Returns the owner's newest token; None if there is none, or if it has expired."""
        found = self._subjects.get(owner)
        if found is None or found.until <= CLOCK.now():
            row = await self._database.row(GET_SUBJECT, owner=owner)
            key = None if row is None else await self._keys.find(owner)
            if row is None or key is None:
                return None
            try:
                found = _Subject(key.open(row["pending"], "subject_token"), row["pending_until"])
            except CannotOpen:
                return None
        return found if found.until > CLOCK.now() else None

    # --- tokens for services -----------------------------------------------------------------------------------------

    async def token(self, owner: str, server: OAuthResource, refused: int | None = None) -> Token:
        """Returns a token for the service, but not the version that was `refused`. Raises NoTokenNow."""
        name = (owner, server.name)
        kept, until = self._tokens.get(name, (None, 0.0))
        if kept is not None and until > monotonic() and kept.version != refused:
            return kept
        subject = await self._subject(owner)
        if subject is None:
            raise NoTokenNow(
                f"{server.name} needs a valid token of {server.issuer} from the user, and the last request of the user"
                " came without one, or it has expired. The user can send another message."
            )
        try:
            access, life, scopes = await self._oauth.exchange(server, subject.token)
        except (IssuerUnavailable, SignInFailed) as error:
            log.warning("mcp.exchange_failed", server=server.name, owner=owner, error=str(error))
            raise NoTokenNow(f"The issuer {server.issuer} gives no token for {server.name} now.") from error
        except TokensRefused as error:
            log.warning("mcp.exchange_refused", server=server.name, owner=owner, error=str(error))
            raise NoTokenNow(f"The issuer {server.issuer} gives the user no token for {server.name}.") from error
        left = (subject.until - CLOCK.now()).total_seconds()
        seconds = min(_UNKNOWN_LIFE if life is None else life - _EARLY, left)
        token = Token(access, next(self._versions), scopes)
        if len(self._tokens) >= _MOST_KEPT:
            self._tokens.clear()
        self._tokens[name] = token, monotonic() + seconds
        return token

    async def close(self) -> None:
        if self._storing:
            await asyncio.wait(self._storing)

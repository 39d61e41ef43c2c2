"""Sessions of logged-in people. A session is a row that is found by the hash of its cookie, and cached for some
seconds.
"""

import asyncio
import re
import time
from datetime import datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from turnstream.api.identity.authenticator import BELIEVED, bearer_token
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity, known_scopes
from turnstream.extensions.login.issuers import Logins
from turnstream.libraries.logins import LoginScopes, check_origin_of_cookie
from turnstream.storage.database import OF_REQUEST, Database, Row, Statement
from turnstream.storage.owners.tokens import LOGIN_SESSION

_MOST_REMEMBERED: Final = 10_000
_FORM: Final = re.compile(r"[\w-]{43}", re.ASCII)
# The last use of a session is written at most once a minute.
FIND_SESSIONS = Statement(
    """
    WITH used AS (
        UPDATE login_sessions SET last_used_at = now()
        WHERE hash = ANY(CAST(:used AS bytea[])) AND expires_at > now()
            AND last_used_at BETWEEN now() - make_interval(secs => :idle) AND now() - interval '1 minute'
    )
    SELECT * FROM login_sessions
    WHERE hash = ANY(CAST(:hashes AS bytea[])) AND expires_at > now()
        AND last_used_at > now() - make_interval(secs => :idle)
    """
)
# Each login ends the earlier session of the same browser, and deletes some expired sessions.
CREATE_SESSION = Statement(
    """
    WITH expired AS (
        DELETE FROM login_sessions WHERE id IN (
            SELECT id FROM login_sessions WHERE expires_at < now() ORDER BY expires_at LIMIT 10 FOR UPDATE SKIP LOCKED
        )
    ), created AS (
        INSERT INTO login_sessions
            (id, owner, hash, state, issuer, subject, sid, name, scopes, roles, plan, expires_at)
        VALUES (:id, :owner, :hash, :state, :issuer, :subject, :sid, :name, CAST(:scopes AS text[]),
            CAST(:roles AS text[]), :plan, now() + make_interval(secs => :life))
        ON CONFLICT (state) DO NOTHING RETURNING *
    ), before AS (
        DELETE FROM login_sessions WHERE hash = CAST(:before AS bytea) AND EXISTS (SELECT FROM created)
        RETURNING id, owner
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'session.created', owner, CONCAT('session:', id), json_build_object(
            'session', id, 'issuer', issuer, 'scopes', scopes, 'roles', roles, 'expires_at', expires_at
        ) FROM created
        UNION ALL
        SELECT 'session.ended', owner, CONCAT('session:', id), json_build_object('session', id, 'by', 'login')
        FROM before
    )
    SELECT id FROM created
    """
)
END_SESSION = Statement(
    """
    WITH ended AS (DELETE FROM login_sessions WHERE id = :id AND owner = :owner RETURNING *), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'session.ended', owner, CONCAT('session:', id), json_build_object('session', id, 'by', 'person')
        FROM ended
    )
    SELECT issuer FROM ended
    """
)
# Ends one session if the issuer names it by `sid`, else all sessions of the person.
END_SESSIONS_OF_ISSUER = Statement(
    """
    WITH ended AS (
        DELETE FROM login_sessions
        WHERE issuer = :issuer AND (CAST(:subject AS text) IS NULL OR subject = :subject)
            AND (CAST(:sid AS text) IS NULL OR sid = :sid)
        RETURNING *
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'session.ended', owner, CONCAT('issuer:', issuer), json_build_object('session', id, 'by', 'issuer')
        FROM ended
    )
    SELECT id FROM ended
    """
)


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def cookie_of(request: Request, logins: Logins) -> str | None:
    """Returns the cookie of a session; None if its form is not valid."""
    value = request.cookies.get(logins.cookie("session"), "")
    return value if _FORM.fullmatch(value) else None


class SessionCookies:
    """Authenticates the cookies of sessions, which only pages of this server's own origin may send. One query at a time
    reads all waiting cookies, so that invented cookies use at most one connection.
    """

    def __init__(self, database: Database, logins: Logins, scopes: LoginScopes) -> None:
        self._database = database
        self._logins = logins
        self._scopes = scopes
        base = urlsplit(logins.base)
        self._origins = {f"{base.scheme}://{base.netloc}"}
        self._urls = frozenset(issuer.url for issuer in logins.issuers.values())
        self._known: dict[bytes, tuple[Row | None, float]] = {}
        self._asked: set[bytes] = set()
        self._used: set[bytes] = set()
        self._lock = asyncio.Lock()

    async def identity_of(self, request: Request) -> Identity | None:
        if bearer_token(request) is not None or (cookie := cookie_of(request, self._logins)) is None:
            return None
        # Over plain http, browsers send no Sec-Fetch-Site, except to this machine.
        check_origin_of_cookie(request, self._logins.cookie("session"), self._origins)
        digest = digest_of(cookie)
        # A stream is no use of the session: an open tab keeps and reconnects its streams without any action of the
        # person.
        if not getattr(getattr(request.state, "endpoint", None), "is_stream", False):
            self._used.add(digest)
        row = await self._find(digest)
        if row is None or row["issuer"] not in self._urls:
            raise Unauthorized("The session of this browser has ended: sign in again.")
        return self._identity_from(row)

    def _identity_from(self, row: Row) -> Identity:
        """Returns the identity of a session. If the settings remove scopes from a role, its sessions lose these scopes
        at once. Scopes that the settings add are granted at the next login.
        """
        expires_at: datetime = row["expires_at"]
        return Identity(
            row["owner"],
            known_scopes(row["scopes"]) & self._scopes.of(row["roles"]),
            expires_at,
            f"{LOGIN_SESSION}{row['id']}",
            row["plan"],
            roles=frozenset(row["roles"]),
        )

    async def _find(self, digest: bytes) -> Row | None:
        row, until = self._known.get(digest, (None, 0.0))
        if time.monotonic() < until:
            return row
        self._asked.add(digest)
        async with self._lock:
            row, until = self._known.get(digest, (None, 0.0))
            return row if time.monotonic() < until else await self._look_up(digest)

    async def _look_up(self, digest: bytes) -> Row | None:
        asked, self._asked = self._asked | {digest}, set()
        used, self._used = self._used, set()
        counted = OF_REQUEST.set(False)  # not counted as a query of this request, because it serves many requests
        try:
            rows = await self._database.rows(FIND_SESSIONS, hashes=list(asked), used=list(used), idle=self._logins.idle)
        finally:
            OF_REQUEST.reset(counted)
        if len(self._known) + len(asked) > _MOST_REMEMBERED:
            self._known.clear()
        found, until = {row["hash"]: row for row in rows}, time.monotonic() + BELIEVED
        # Unknown cookies are cached, too, so that a repeated guess costs no query.
        self._known |= {each: (found.get(each), until) for each in asked}
        return found.get(digest)

"""The sign-ins of owners to MCP servers: their rows, their tokens, and the calls that wait for a sign-in.

Tokens are encrypted with the key of their owner, and bound to one server at one address. Only one replica at a time
refreshes them: this replica claims the row, and the other replicas wait for the next version of the row.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
import structlog

from turnstream.domain.errors import CannotOpen
from turnstream.engine.recorder import to_the_end
from turnstream.engine.tool_gate import SIGNED_IN
from turnstream.extensions.mcp.exchanges import TokenExchanges
from turnstream.extensions.mcp.oauth import (
    IssuerUnavailable,
    McpIssuer,
    OAuth,
    OAuthTokens,
    Pending,
    SignInFailed,
    TokensRefused,
)
from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.owner_tokens import OAuthResource, Token
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.storage.database import Database, Row, Statement, Transaction, retry_while_unavailable
from turnstream.storage.owners.audit import NOTE
from turnstream.storage.rows import OPEN_STATUSES, to_json
from turnstream.storage.runs.queue import QUEUED, UPDATED
from turnstream.storage.runs.session import CHANNEL
from turnstream.tools.tool import SignIn, ToolUnavailable

log = structlog.get_logger(__name__)

_PENDING: Final = timedelta(minutes=10)  # the longest time between the page of the link and the callback
_LEASE: Final = timedelta(seconds=30)  # the lease of the replica that refreshes, longer than its request to the issuer
_WAIT: Final = 40.0  # seconds: the longest wait for a refresh by another replica
_LOOK: Final = 0.1  # seconds between two reads of a row that another replica has claimed
_EARLY: Final = timedelta(seconds=30)  # how long before their expiry tokens are refreshed
OWN: Final = "own:"  # the prefix of the name of a server that an owner has added
_MOST_REASON: Final = 500  # maximum characters of an error text

T = TypeVar("T")

_COLUMNS = "owner, server, tokens, version, expires_at"
GET_SIGN_IN = Statement(f"SELECT {_COLUMNS} FROM sign_ins WHERE owner = :owner AND server = :server")
LIST_SIGN_INS = Statement(
    f"""
    SELECT server, issuer, scopes, signed_in_at, refreshed_at FROM sign_ins
    WHERE owner = :owner AND tokens IS NOT NULL AND server NOT LIKE '{OWN}%' ORDER BY server
    """
)
# Digests of the tools that an owner has accepted. New digests are stored only if the row still has the digests `seen`.
GET_ACCEPTED = Statement("SELECT tools FROM sign_ins WHERE owner = :owner AND server = :server")
ACCEPT_TOOLS = Statement(
    """
    INSERT INTO sign_ins (owner, server, tools) VALUES (:owner, :server, CAST(:tools AS json))
    ON CONFLICT (owner, server) DO UPDATE SET tools = EXCLUDED.tools
    WHERE sign_ins.tools::text IS NOT DISTINCT FROM CAST(:seen AS text) RETURNING owner
    """
)
GET_TOKENS = Statement(
    f"SELECT server, tokens FROM sign_ins WHERE owner = :owner AND tokens IS NOT NULL AND server NOT LIKE '{OWN}%'"
)
# The tokens of an earlier sign-in are kept until the new sign-in is complete.
BEGIN_SIGN_IN = Statement(
    """
    INSERT INTO sign_ins (owner, server, state, pending, pending_until)
    VALUES (:owner, :server, :state, :pending, :until)
    ON CONFLICT (owner, server) DO UPDATE
    SET state = EXCLUDED.state, pending = EXCLUDED.pending, pending_until = EXCLUDED.pending_until
    RETURNING owner
    """
)
GET_PENDING = Statement("SELECT owner, server, pending, pending_until FROM sign_ins WHERE state = :state")
# A state can be used only once.
TAKE_PENDING = Statement(
    """
    UPDATE sign_ins SET state = NULL, pending = NULL, pending_until = NULL WHERE state = :state RETURNING owner, server
    """
)
# If a sign-out or an erasure deleted the row after the sign-in started, the row is not created again.
STORE_SIGN_IN = Statement(
    """
    UPDATE sign_ins
    SET issuer = :issuer, scopes = :scopes, tokens = :tokens, expires_at = :expires_at, version = version + 1,
        signed_in_at = now(), refreshed_at = NULL, refreshing_until = NULL
    WHERE owner = :owner AND server = :server RETURNING owner
    """
)
CLAIM_REFRESH = Statement(
    f"""
    UPDATE sign_ins SET refreshing_until = now() + CAST(:lease AS interval)
    WHERE owner = :owner AND server = :server AND version = :version AND tokens IS NOT NULL
      AND (refreshing_until IS NULL OR refreshing_until < now())
    RETURNING {_COLUMNS}
    """
)
STORE_REFRESHED = Statement(
    """
    UPDATE sign_ins
    SET tokens = :tokens, scopes = :scopes, expires_at = :expires_at, version = version + 1, refreshed_at = now(),
        refreshing_until = NULL
    WHERE owner = :owner AND server = :server AND version = :version RETURNING version
    """
)
GIVE_UP_REFRESH = Statement(
    """
    UPDATE sign_ins SET refreshing_until = NULL WHERE owner = :owner AND server = :server AND version = :version
    RETURNING owner
    """
)
FORGET_TOKENS = Statement(
    """
    UPDATE sign_ins
    SET tokens = NULL, signed_in_at = NULL, refreshed_at = NULL, refreshing_until = NULL, expires_at = NULL,
        version = version + 1
    WHERE owner = :owner AND server = :server AND version = :version RETURNING owner
    """
)
DELETE_SIGN_IN = Statement(
    "DELETE FROM sign_ins WHERE owner = :owner AND server = :server RETURNING tokens, issuer, scopes"
)
GET_LINKED_ASK = Statement(
    """
    SELECT asks.question, asks.answer, asks.expires_at <= now() AS expired, chats.owner, turns.status,
        turns.cancel_requested
    FROM asks JOIN turns ON turns.id = turn_id JOIN chats ON chats.id = chat_id
    WHERE turn_id = :turn AND asks.kind = 'sign_in' AND asks.question->>'url' = :url
    """
)
# The turns are locked first, as they are for their own writes, and always in the same order.
ANSWER_SIGN_INS = Statement(
    f"""
    WITH waiting AS (
        SELECT id FROM turns WHERE queue_owner = :owner AND status IN {OPEN_STATUSES} AND EXISTS (
            SELECT FROM asks WHERE turn_id = turns.id AND answer IS NULL AND kind = 'sign_in'
              AND question->>'server' = :server
        )
        ORDER BY id FOR NO KEY UPDATE
    ), answered AS (
        UPDATE asks SET answer = CAST(:answer AS json), answered_at = now()
        FROM waiting, (SELECT set_config('turnstream.principals', :principals, true) AS names) AS person
        WHERE person.names IS NOT NULL AND turn_id = waiting.id AND answer IS NULL
          AND kind = 'sign_in' AND question->>'server' = :server
        RETURNING turn_id
    ), arrived AS (
        UPDATE turns
        SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
        WHERE id IN (SELECT turn_id FROM answered) RETURNING id, chat_id, status
    )
    SELECT id, chat_id, pg_notify(
        {CHANNEL}, CASE status WHEN 'queued' THEN '{QUEUED}' ELSE '{UPDATED} ' || id END
    ) FROM arrived
    """
)

_ANSWER: Final = to_json({"kind": "result", "text": to_json(SIGNED_IN)})


@dataclass(frozen=True, slots=True)
class LinkedAsk:
    """The ask to which a link belongs, and its owner. `over` is the reason why the ask no longer waits; None while it
    waits.
    """

    owner: str
    server: str
    scopes: tuple[str, ...]
    over: str | None = None


@dataclass(frozen=True, slots=True)
class SignInRow:
    """A sign-in without its secrets."""

    server: str
    issuer: str
    scopes: tuple[str, ...]
    signed_in_at: datetime
    refreshed_at: datetime | None


class SignIns:
    """The sign-ins of all owners. `servers` has MCP servers, and services of HTTP tools with `auth`, by name. `notify`
    wakes the readers of an owner and a chat.
    """

    def __init__(
        self,
        database: Database,
        keys: OwnerKeys,
        oauth: OAuth,
        servers: Mapping[str, OAuthResource],
        notify: Callable[[str, UUID], None],
    ) -> None:
        self._database = database
        self._keys = keys
        self._notify = notify
        self.oauth = oauth
        self.exchanges = TokenExchanges(database, keys, oauth)
        self.servers = servers

    async def close(self) -> None:
        await self.exchanges.close()
        await self.oauth.close()

    # --- tokens for calls --------------------------------------------------------------------------------------------

    async def token(self, owner: str, server: OAuthResource) -> Token | None:
        """Returns a token of the owner; None if the owner must sign in. Raises ToolUnavailable."""
        if server.exchange:
            return await self.exchanges.token(owner, server)
        row = await self._database.row(GET_SIGN_IN, owner=owner, server=server.name)
        if row is None or row["tokens"] is None:
            return None
        if row["expires_at"] is not None and row["expires_at"] - _EARLY <= CLOCK.now():
            return await self.refreshed(owner, server, row["version"])
        return await self._token_of(row, server)

    async def refreshed(self, owner: str, server: OAuthResource, version: int) -> Token | None:
        """Returns a token newer than `version`, which any replica may have refreshed. Returns None if the owner must
        sign in. Raises ToolUnavailable.
        """
        if server.exchange:
            return await self.exchanges.token(owner, server, refused=version)
        named, deadline = {"owner": owner, "server": server.name}, monotonic() + _WAIT
        while monotonic() < deadline:
            claimed = await self._database.row(CLAIM_REFRESH, **named, version=version, lease=_LEASE)
            if claimed is not None:
                # The refresh completes even if the call is cancelled, because the issuer accepts the old refresh token
                # only once.
                return await to_the_end(self._refresh(claimed, server))
            row = await self._database.row(GET_SIGN_IN, **named)
            if row is None or row["tokens"] is None:
                return None
            if row["version"] != version:
                return await self._token_of(row, server)
            await asyncio.sleep(_LOOK * random.uniform(0.5, 1.5))  # noqa: S311, no secret depends on it
        raise ToolUnavailable(f"The sign-in to {server.name} is being renewed, and that takes too long. Try again.")

    async def _refresh(self, row: Row, server: OAuthResource) -> Token | None:
        owner = row["owner"]
        named = {"owner": owner, "server": server.name, "version": row["version"]}
        grant = await self._grant_of(row, server)
        if grant is None:
            await self._write(GIVE_UP_REFRESH, **named)
            return None
        try:
            new = await self.oauth.refresh(server, grant)
        except IssuerUnavailable as error:
            await self._write(GIVE_UP_REFRESH, **named)
            log.warning("mcp.refresh_failed", server=server.name, owner=owner, error=str(error)[:_MOST_REASON])
            raise ToolUnavailable(f"The sign-in to {server.name} cannot be renewed now. Try again later.") from error
        except TokensRefused as error:
            await self._write(FORGET_TOKENS, **named)
            log.warning("mcp.refresh_refused", server=server.name, owner=owner, error=str(error)[:_MOST_REASON])
            return None
        tokens = await self._sealed(owner, server, new)
        ends, scopes = _end_of(new), list(new.scopes)
        stored = await self._write(STORE_REFRESHED, **named, tokens=tokens, scopes=scopes, expires_at=ends)
        if stored is not None:
            return Token(new.access_token, stored["version"], new.scopes)
        # Meanwhile the owner signed out or signed in again, or the write succeeded and its answer was lost. The new
        # tokens are not revoked while the row has tokens: the next version of the row may belong to the same consent.
        found = await self._database.row(GET_SIGN_IN, owner=owner, server=server.name)
        if found is None or found["tokens"] is None:
            await self.oauth.revoke(server, new)
            return None
        return await self._token_of(found, server)

    async def _write(self, statement: Statement, **values: Any) -> Row | None:
        """Writes the result as soon as Postgres is reachable, because the issuer accepts a refresh token only once."""
        return await retry_while_unavailable(partial(self._database.row, statement, **values))

    async def _token_of(self, row: Row, server: OAuthResource) -> Token | None:
        grant = await self._grant_of(row, server)
        return None if grant is None else Token(grant.access_token, row["version"], grant.scopes)

    async def _grant_of(self, row: Row, server: OAuthResource) -> OAuthTokens | None:
        """Decrypts the tokens of a row. Returns None if the server's address was changed, or if the key is missing. The
        row keeps the tokens, because the address and the key may be restored.
        """
        try:
            return await self._opened(row["owner"], server, row["tokens"], OAuthTokens)
        except CannotOpen as error:
            log.warning("mcp.tokens_unreadable", server=server.name, owner=row["owner"], error=str(error))
            return None

    def ask(self, owner: str, turn: UUID, server: OAuthResource, scopes: Collection[str], seen: int | None) -> SignIn:
        """Creates the ask with which a call requests a sign-in. `seen` is the version of the token that the server
        refused. Raises ToolUnavailable if owners do not sign in to the server.
        """
        if server.exchange:
            raise ToolUnavailable(f"{server.name} does not accept the token that {server.issuer} gave for the user.")

        async def recheck() -> None:
            row = await self._database.row(GET_SIGN_IN, owner=owner, server=server.name)
            if row is None or row["tokens"] is None or row["version"] == seen:
                return
            if await self._token_of(row, server) is None:  # otherwise the call would ask for a sign-in again and again
                return
            async with self._database.transaction() as connection:
                await self._answer(connection, owner, server)

        url = f"{self.oauth.base}/sign-in/{turn}/{token_urlsafe(32)}"
        return SignIn(server.name, tuple(scopes) or tuple(server.scopes), url, recheck, server.sign_in_by)

    # --- the sign-in -------------------------------------------------------------------------------------------------

    async def linked(self, turn: UUID, secret: str) -> LinkedAsk | None:
        """Returns the ask to which a link belongs; None if the link is unknown."""
        url = f"{self.oauth.base}/sign-in/{turn}/{secret}"
        row = await self._database.row(GET_LINKED_ASK, turn=turn, url=url)
        if row is None:
            return None
        question = msgspec.json.decode(row["question"])
        over = None
        if row["answer"] is not None:
            over = "The call already has an answer."
        elif row["expired"]:
            over = "The link has expired."
        elif row["status"] not in {"queued", "running", "waiting"} or row["cancel_requested"]:
            over = "The call does not wait for a sign-in any more."
        return LinkedAsk(row["owner"], question["server"], tuple(question["scopes"]), over)

    async def begin(
        self, owner: str, server: OAuthResource, issuer: McpIssuer, cookie: str, actor: str | None = None
    ) -> str:
        """Starts a sign-in, and returns the address at which the person consents. An earlier unfinished sign-in of the
        owner to this server can then no longer be completed. Raises SignInFailed.
        """
        client = await self.oauth.client_for(server, issuer)
        state = token_urlsafe(32)
        url, pending = self.oauth.begin(issuer, client, state, _digest(cookie).hex(), actor)
        await self._database.row(
            BEGIN_SIGN_IN,
            owner=owner,
            server=server.name,
            state=_digest(state),
            pending=await self._sealed(owner, server, pending),
            until=CLOCK.now() + _PENDING,
        )
        return url

    async def complete(self, state: str, cookie: str, iss: str | None, code: str | None, error: str | None) -> str:
        """Completes the sign-in to which a callback belongs, answers the waiting calls, and returns the name of the
        server. `cookie` must be the cookie of the browser that began the sign-in. Raises SignInFailed; the calls then
        keep waiting.
        """
        row = await self._database.row(GET_PENDING, state=_digest(state))
        server = None if row is None else self.servers.get(row["server"])
        if row is None or server is None:
            raise SignInFailed("This sign-in was completed before, or was begun again since, or never was.")
        owner = row["owner"]
        try:
            pending = await self._opened(owner, server, row["pending"], Pending)
        except CannotOpen:
            raise SignInFailed("This sign-in was begun for another address of the server.") from None
        if not compare_digest(pending.cookie, _digest(cookie).hex()):
            log.warning("mcp.sign_in_refused", server=server.name, owner=owner, reason="another browser")
            raise SignInFailed("This sign-in was begun in another browser.")
        if await self._database.row(TAKE_PENDING, state=_digest(state)) is None:
            raise SignInFailed("This sign-in was completed before.")
        if row["pending_until"] <= CLOCK.now():
            raise SignInFailed("More than ten minutes have passed since this sign-in was begun.")
        if code is None:
            raise SignInFailed(f"The issuer gave no access: {(error or 'no reason')[:_MOST_REASON]}.")
        grant = await self.oauth.complete(server, pending, code, iss)
        if not await self._store(owner, server, grant, pending.actor):
            await self.oauth.revoke(server, grant)
            raise SignInFailed("The sign-in was ended while it was completed.")
        log.info("mcp.signed_in", server=server.name, owner=owner)
        return server.name

    async def _store(self, owner: str, server: OAuthResource, grant: OAuthTokens, actor: str | None) -> bool:
        """Stores the tokens and answers the waiting calls, in one transaction. Returns False if the row no longer
        exists.
        """
        values = {
            "issuer": grant.issuer,
            "scopes": list(grant.scopes),
            "tokens": await self._sealed(owner, server, grant),
            "expires_at": _end_of(grant),
        }
        async with self._database.transaction() as connection:
            if await connection.row(STORE_SIGN_IN, owner=owner, server=server.name, **values) is None:
                return False
            await note_sign_in(connection, "sign_in.made", owner, server.name, grant.issuer, grant.scopes, actor)
            chats = await self._answer(connection, owner, server)
        for chat in chats:
            self._notify(owner, chat)
        return True

    async def _answer(self, connection: Transaction, owner: str, server: OAuthResource) -> Collection[UUID]:
        """Answers the calls that wait for a sign-in to the server, and returns their chats. If the server has
        approvers, the answers are stored in their name, because the page of the link admits nobody else.
        """
        principals = self._database.signed_principals(server.sign_in_by)
        values = {"server": server.name, "answer": _ANSWER, "principals": principals}
        rows = await connection.rows(ANSWER_SIGN_INS, owner=owner, **values)
        return {row["chat_id"] for row in rows}

    # --- accepted tools ----------------------------------------------------------------------------------------------

    async def accepted_tools(self, owner: str, server: str) -> str | None:
        """Returns the tools that the owner accepted last, as JSON; None if the owner has not seen any tools of the
        server.
        """
        row = await self._database.row(GET_ACCEPTED, owner=owner, server=server)
        tools: str | None = None if row is None else row["tools"]
        return tools

    async def accept_tools(self, owner: str, server: str, tools: str, seen: str | None) -> None:
        """Accepts tools, which replace the tools in `seen`. Changes nothing if other tools were accepted meanwhile."""
        await self._database.row(ACCEPT_TOOLS, owner=owner, server=server, tools=tools, seen=seen)

    # --- for owners --------------------------------------------------------------------------------------------------

    async def revoke(self, owner: str, name: str, tokens: str) -> bool:
        """Revokes tokens at the issuer after they were deleted here. Returns whether the issuer confirmed it."""
        server = self.servers.get(name)
        if server is None:
            return False
        try:
            grant = await self._opened(owner, server, tokens, OAuthTokens)
        except CannotOpen:
            return False
        return await self.oauth.revoke(server, grant)

    async def _sealed(self, owner: str, server: OAuthResource, value: object) -> str:
        key = await self._keys.find_or_create(owner)
        return key.seal(to_json(value), "sign_in", server.name, server.url or "")

    async def _opened(self, owner: str, server: OAuthResource, sealed: str, type: type[T]) -> T:
        """Decrypts a value. Raises CannotOpen even if only the server's address has changed: tokens must not be sent
        elsewhere.
        """
        key = await self._keys.find(owner)
        if key is None:
            raise CannotOpen(f"There is no key of {owner}.")
        return msgspec.json.decode(key.open(sealed, "sign_in", server.name, server.url or ""), type=type)


async def list_sign_ins(database: Database, owner: str) -> Sequence[SignInRow]:
    rows = await database.rows(LIST_SIGN_INS, owner=owner)
    return [SignInRow(**{**dict(row), "scopes": tuple(row["scopes"] or ())}) for row in rows]


async def delete_sign_in(database: Database, owner: str, server: str, actor: str | None) -> str | None:
    """Deletes a sign-in, even if the operator has removed the server. Returns the encrypted tokens; None if there were
    none.
    """
    async with database.transaction() as connection:
        row = await connection.row(DELETE_SIGN_IN, owner=owner, server=server)
        if row is None or row["tokens"] is None:
            return None
        await note_sign_in(connection, "sign_in.revoked", owner, server, row["issuer"], row["scopes"], actor)
    tokens: str = row["tokens"]
    return tokens


async def note_sign_in(
    connection: Transaction,
    kind: str,
    owner: str,
    server: str,
    issuer: str | None,
    scopes: Collection[str] | None,
    actor: str | None = None,
) -> None:
    detail: dict[str, Any] = {"server": server, "issuer": issuer, "scopes": list(scopes or ())}
    await connection.rows(NOTE, kind=kind, owner=owner, actor=actor, details=[to_json(detail)])


def _end_of(grant: OAuthTokens) -> datetime | None:
    return None if grant.expires_in is None else CLOCK.now() + timedelta(seconds=max(0, grant.expires_in))


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()

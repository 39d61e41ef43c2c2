"""The account of an owner: credentials, grants, entries of the audit trail, and the request for an erasure.

The API's role has no access to tokens and the audit trail. So these statements have access to the rows of all owners,
and each statement names its owner.
"""

from collections.abc import Sequence
from uuid import UUID

from turnstream.domain.errors import NotFound
from turnstream.domain.identity import Identity
from turnstream.libraries.audit_entries import AuditEntry, entries_of
from turnstream.storage.contents import BYTES_SIZE, CHATS
from turnstream.storage.database import LONG, Database, Row, Statement

MOST_COUNTED = 100_000  # maximum number of rows of each type that a read of the account counts
GET_ACCOUNT = Statement(
    f"""
    SELECT (
            SELECT count(*) FROM (SELECT FROM chats WHERE owner = :owner AND of_turn IS NULL LIMIT :most) AS counted
        ) AS chats, uploads, bytes,
        (SELECT count(*) FROM (SELECT FROM documents WHERE owner = :owner LIMIT :most) AS counted) AS documents,
        (SELECT due_at FROM erasures WHERE owner = :owner) AS erasure_due_at
    FROM (
        SELECT count(*) AS uploads, coalesce(sum(size), 0) AS bytes
        FROM (SELECT {BYTES_SIZE} AS size FROM uploads WHERE owner = :owner LIMIT :most) AS counted
    ) AS files
    """,
    timeout=LONG,
)
LIST_CREDENTIALS = Statement(
    """
    SELECT 'token' AS kind, id, name, scopes, created_at, expires_at, last_used_at, NULL::uuid AS chat,
        NULL::uuid AS turn
    FROM tokens WHERE owner = :owner
    UNION ALL
    SELECT 'browser', id, NULL, scopes, NULL, expires_at, NULL, chat_id, turn_id
    FROM browser_tokens WHERE owner = :owner AND expires_at > now()
    UNION ALL
    SELECT 'session', id, name, scopes, created_at, expires_at, last_used_at, NULL, NULL
    FROM login_sessions WHERE owner = :owner AND expires_at > now()
    ORDER BY kind DESC, id DESC LIMIT :limit
    """
)
# A database trigger writes the audit entry of a stored token, with the actor that the transaction sets.
REVOKE_CREDENTIAL = Statement(
    """
    WITH token AS (
        DELETE FROM tokens USING (SELECT set_config('turnstream.actor', CAST(:actor AS text), true) AS name) AS actor
        WHERE actor.name IS NOT NULL AND owner = :owner AND id = :id RETURNING id
    ), browser AS (
        DELETE FROM browser_tokens WHERE owner = :owner AND id = :id RETURNING id
    ), session AS (
        DELETE FROM login_sessions WHERE owner = :owner AND id = :id RETURNING id
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'token.deleted', :owner, CAST(:actor AS text), json_build_object('token', id) FROM browser
        UNION ALL
        SELECT 'session.ended', :owner, CAST(:actor AS text), json_build_object('session', id, 'by', 'person')
        FROM session
    )
    SELECT id FROM token UNION ALL SELECT id FROM browser UNION ALL SELECT id FROM session
    """
)
LIST_GRANTS = Statement(
    """
    SELECT grants.id, chat_id AS chat, title, tool, "when", grants.created_at, turn_id AS turn, tool_use_id
    FROM grants JOIN chats ON chats.id = chat_id
    WHERE owner = :owner AND revoked_at IS NULL ORDER BY grants.created_at DESC, grants.id LIMIT :limit
    """,
    opens=[CHATS.named(id="chat")],
)
LIST_OWN_ENTRIES = Statement(
    "SELECT id, created_at, kind, owner, actor, detail FROM audit"
    " WHERE owner = :owner AND id < :before ORDER BY id DESC LIMIT :limit",
    timeout=LONG,
)
ASK_ERASURE = Statement(
    """
    WITH asked AS (
        INSERT INTO erasures (owner, due_at) VALUES (:owner, now() + make_interval(secs => :delay))
        ON CONFLICT (owner) DO NOTHING RETURNING due_at
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'erasure.asked', :owner, CAST(:actor AS text), json_build_object('due_at', due_at) FROM asked
    )
    SELECT due_at FROM asked UNION ALL SELECT due_at FROM erasures WHERE owner = :owner
    """
)
# A due erasure may have started, and cannot be undone.
UNDO_ERASURE = Statement(
    """
    WITH undone AS (
        DELETE FROM erasures WHERE owner = :owner AND due_at > now() RETURNING owner
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'erasure.undone', owner, CAST(:actor AS text), '{}' FROM undone
    )
    SELECT owner FROM undone
    """
)


class OwnAccounts:
    """Reads and changes the accounts of owners. An erasure is due `delay` seconds after its request."""

    def __init__(self, database: Database, delay: float) -> None:
        self._database = database
        self._delay = delay

    async def get(self, owner: str) -> Row:
        row = await self._database.row(GET_ACCOUNT, owner=owner, most=MOST_COUNTED)
        assert row is not None
        return row

    async def credentials(self, owner: str, limit: int) -> Sequence[Row]:
        return await self._database.rows(LIST_CREDENTIALS, owner=owner, limit=limit)

    async def revoke(self, identity: Identity, id: UUID) -> None:
        """Revokes a credential. Raises NotFound."""
        if await self._database.row(REVOKE_CREDENTIAL, owner=identity.owner, id=id, actor=identity.actor) is None:
            raise NotFound(f"The owner has no token {id}.")

    async def grants(self, owner: str, limit: int) -> Sequence[Row]:
        return await self._database.rows(LIST_GRANTS, owner=owner, limit=limit)

    async def entries(self, owner: str, before: int, limit: int) -> Sequence[AuditEntry]:
        rows = await self._database.rows(LIST_OWN_ENTRIES, owner=owner, before=before, limit=limit)
        return entries_of(rows)

    async def ask_erasure(self, identity: Identity) -> Row:
        """Stores the request for an erasure. A second request has no effect."""
        values = {"owner": identity.owner, "delay": self._delay, "actor": identity.actor}
        row = await self._database.row(ASK_ERASURE, **values)
        assert row is not None
        return row

    async def undo_erasure(self, identity: Identity) -> None:
        """Withdraws the request for an erasure. Raises NotFound if there is no request, or if the erasure is due."""
        if await self._database.row(UNDO_ERASURE, owner=identity.owner, actor=identity.actor) is None:
            raise NotFound("There is no erasure to undo: no erasure was requested, or the erasure has begun.")

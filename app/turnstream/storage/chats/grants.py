"""Grants: approvals for further calls in a chat. The row of a revoked grant stays, for audits."""

from collections.abc import Sequence
from uuid import UUID

from turnstream.domain.asks import Grant
from turnstream.domain.errors import NotFound
from turnstream.storage.database import Database, Row, Statement

GET_GRANTS = Statement("SELECT * FROM grants WHERE chat_id = :chat AND revoked_at IS NULL ORDER BY created_at, id")
REVOKE_GRANT = Statement(
    """
    UPDATE grants SET revoked_at = coalesce(revoked_at, now())
    FROM chats, (SELECT set_config('turnstream.actor', :actor, true) AS name) AS actor
    WHERE actor.name IS NOT NULL AND chats.id = chat_id AND owner = :owner AND chat_id = :chat AND grants.id = :grant
    RETURNING grants.id
    """
)


class Grants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_chat(self, chat: UUID) -> Sequence[Grant]:
        """Returns the valid grants of a chat, oldest first."""
        return [_grant_from(row) for row in await self._database.rows(GET_GRANTS, chat=chat)]

    async def revoke(self, owner: str, chat: UUID, grant: UUID, actor: str = "") -> None:
        """Revokes a grant; idempotent. `actor` is the caller in the audit trail. Raises NotFound."""
        values = {"owner": owner, "chat": chat, "grant": grant, "actor": self._database.signed_actor(actor)}
        if await self._database.row(REVOKE_GRANT, **values) is None:
            raise NotFound(f"There is no grant {grant} in chat {chat}.")


def _grant_from(row: Row) -> Grant:
    return Grant(
        id=row["id"],
        tool=row["tool"],
        digest=row["digest"],
        when=row["when"],
        turn=row["turn_id"],
        tool_use_id=row["tool_use_id"],
        created_at=row["created_at"],
    )

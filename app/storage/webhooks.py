"""The ends of turns that a webhook is to be told of. A trigger puts the rows (migration 0003): however a turn ends, its
row is there in the same transaction. Where no webhook is configured there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from app.storage.database import Database, Row, Statement
from app.storage.rows import from_json

# Whoever takes one moves its due time on first: should he die, somebody else tries when it has come.
CLAIM_WEBHOOKS = Statement(
    """
    WITH due AS (
        SELECT turn_id FROM webhooks WHERE due_at <= now() ORDER BY due_at FOR UPDATE SKIP LOCKED LIMIT :limit
    )
    UPDATE webhooks SET due_at = now() + :lease, tries = tries + 1
    FROM due JOIN turns ON turns.id = due.turn_id JOIN chats ON chats.id = turns.chat_id
    WHERE webhooks.turn_id = due.turn_id
    RETURNING turns.id, turns.chat_id, chats.owner, turns.status, turns.stop_reason, turns.usage, turns.error,
        turns.created_at, turns.ended_at, webhooks.tries
    """
)
WEBHOOK_DELIVERED = Statement(
    """
    UPDATE webhooks SET due_at = NULL, delivered_at = now(), answer = :answer
    WHERE turn_id = :turn AND due_at IS NOT NULL
    """
)
WEBHOOK_FAILED = Statement(
    """
    UPDATE webhooks SET due_at = now() + :wait, answer = :answer
    WHERE turn_id = :turn AND tries = :tries AND due_at IS NOT NULL
    """
)
WEBHOOK_GIVEN_UP = Statement(
    """
    UPDATE webhooks SET due_at = NULL, given_up_at = now(), answer = :answer
    WHERE turn_id = :turn AND tries = :tries AND due_at IS NOT NULL
    """
)
SWEEP_WEBHOOKS = Statement(
    "DELETE FROM webhooks WHERE coalesce(delivered_at, given_up_at) < now() - CAST(:age AS interval)"
)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A turn that ended, to be told of; this is the try number `tries`. `usage` and `error` are as in JSON."""

    turn: UUID
    chat: UUID
    owner: str
    status: str
    stop_reason: str | None
    usage: Any
    error: Any
    created_at: datetime
    ended_at: datetime
    tries: int


class Webhooks:
    """What says how a try went may be said twice. `answer` is what the receiver answered, for whoever looks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, limit: int, lease: float) -> Sequence[Webhook]:
        """Takes up to `limit` that are due, for `lease` seconds."""
        rows = await self._database.rows(CLAIM_WEBHOOKS, limit=limit, lease=timedelta(seconds=lease))
        return [_webhook_from(row) for row in rows]

    async def delivered(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(WEBHOOK_DELIVERED, turn=webhook.turn, answer=answer)

    async def failed(self, webhook: Webhook, answer: str, wait: float) -> None:
        """It is due again in `wait` seconds, unless somebody has taken it meanwhile."""
        await self._database.rows(
            WEBHOOK_FAILED, turn=webhook.turn, tries=webhook.tries, answer=answer, wait=timedelta(seconds=wait)
        )

    async def given_up(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(WEBHOOK_GIVEN_UP, turn=webhook.turn, tries=webhook.tries, answer=answer)

    async def sweep(self, age: float) -> None:
        """Forgets those that were done with `age` seconds ago."""
        await self._database.rows(SWEEP_WEBHOOKS, age=timedelta(seconds=age))


def _webhook_from(row: Row) -> Webhook:
    return Webhook(
        turn=row["id"],
        chat=row["chat_id"],
        owner=row["owner"],
        status=row["status"],
        stop_reason=row["stop_reason"],
        usage=from_json(row["usage"]),
        error=from_json(row["error"]),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        tries=row["tries"],
    )

"""The queue of webhooks for turns that have ended.

A trigger inserts the rows (migration 0003), in the transaction that ends the turn, whichever statement that is. Without
a configured webhook there are no rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from app.storage.database import LONG, Database, Row, Statement
from app.storage.rows import from_json

# The claim moves the due time on: when this replica dies, another one tries again after the lease.
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
    "DELETE FROM webhooks WHERE coalesce(delivered_at, given_up_at) < now() - CAST(:age AS interval)",
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A turn that has ended, and try number `tries` to deliver it. `usage` and `error` are JSON values."""

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
    """Claims and outcomes of tries. An outcome may be written twice. `answer` is the receiver's response, for
    operators.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, limit: int, lease: float) -> Sequence[Webhook]:
        """Claims up to `limit` due webhooks for `lease` seconds."""
        rows = await self._database.rows(CLAIM_WEBHOOKS, limit=limit, lease=timedelta(seconds=lease))
        return [_webhook_from(row) for row in rows]

    async def delivered(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(WEBHOOK_DELIVERED, turn=webhook.turn, answer=answer)

    async def failed(self, webhook: Webhook, answer: str, wait: float) -> None:
        """Makes it due again in `wait` seconds, unless another replica has claimed it meanwhile."""
        await self._database.rows(
            WEBHOOK_FAILED, turn=webhook.turn, tries=webhook.tries, answer=answer, wait=timedelta(seconds=wait)
        )

    async def given_up(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(WEBHOOK_GIVEN_UP, turn=webhook.turn, tries=webhook.tries, answer=answer)

    async def sweep(self, age: float) -> None:
        """Deletes those that were finished more than `age` seconds ago."""
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

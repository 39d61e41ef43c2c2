"""The queues of webhooks: for ended turns, and for turns that have started to wait for a person.

Database triggers (`keep_webhook`) insert the rows, in the transaction that ends the turn or stores the asks, whichever
statement does so. While no replica's row names a kind, no rows of that kind are inserted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.retention import NO_ID, Aged, aged
from turnstream.storage.rows import from_json
from turnstream.storage.runs.queue import WebhookKind

# The words in which the statements of the two kinds differ. A turn ends once, so its end has no number.
_WORDS: Mapping[WebhookKind, Mapping[str, str]] = {
    "ended": {"TABLE": "webhooks", "NUMBER": "0", "CALLS": "NULL", "SINCE": "turns.ended_at"},
    "waiting": {
        "TABLE": "waiting_webhooks",
        "NUMBER": "asked",
        "CALLS": "claimed.calls",
        "SINCE": "claimed.created_at",
    },
}


def _statements(sql: str, **options: Any) -> Mapping[WebhookKind, Statement]:
    """Returns the statement for each kind of webhook."""
    return {kind: Statement(_with_words(sql, words), **options) for kind, words in _WORDS.items()}


def _with_words(sql: str, words: Mapping[str, str]) -> str:
    for placeholder, word in words.items():
        sql = sql.replace(placeholder, word)
    return sql


# The claim advances the due time, so that another replica retries after the lease if this replica dies.
CLAIM_WEBHOOKS = _statements(
    """
    WITH due AS (
        SELECT turn_id, NUMBER AS number FROM TABLE WHERE due_at <= now()
        ORDER BY due_at FOR UPDATE SKIP LOCKED LIMIT :limit
    ), claimed AS (
        UPDATE TABLE SET due_at = now() + :lease, tries = tries + 1
        FROM due WHERE TABLE.turn_id = due.turn_id AND NUMBER = due.number
        RETURNING TABLE.*, due.number
    )
    SELECT turns.id, turns.chat_id, chats.owner, turns.status, turns.stop_reason, turns.usage, turns.error,
        turns.created_at, turns.ended_at, turns.request->>'model' AS model, turns.request->>'trace' AS trace,
        charged.cost, claimed.tries, claimed.number, CALLS AS calls, SINCE AS happened_at
    FROM claimed JOIN turns ON turns.id = claimed.turn_id JOIN chats ON chats.id = turns.chat_id,
        LATERAL (
            SELECT CASE WHEN count(*) = count(cost) THEN sum(cost) END AS cost
            FROM charges WHERE charges.turn_id = turns.id AND kind <> 'title'
        ) AS charged
    """
)
WEBHOOK_DELIVERED = _statements(
    """
    UPDATE TABLE SET due_at = NULL, delivered_at = now(), answer = :answer
    WHERE turn_id = :turn AND NUMBER = CAST(:number AS int) AND due_at IS NOT NULL
    """
)
WEBHOOK_FAILED = _statements(
    """
    UPDATE TABLE SET due_at = now() + :wait, answer = :answer
    WHERE turn_id = :turn AND NUMBER = CAST(:number AS int) AND tries = :tries AND due_at IS NOT NULL
    """
)
WEBHOOK_GIVEN_UP = _statements(
    """
    UPDATE TABLE SET due_at = NULL, given_up_at = now(), answer = :answer
    WHERE turn_id = :turn AND NUMBER = CAST(:number AS int) AND tries = :tries AND due_at IS NOT NULL
    """
)

_FINISHED = "coalesce(delivered_at, given_up_at)"
# Finished webhooks by the names of their tables.
FINISHED: Mapping[str, Aged] = {
    "webhooks": aged("webhooks", {"turn_id": NO_ID}, _FINISHED),
    "waiting_webhooks": aged("waiting_webhooks", {"turn_id": NO_ID, "asked": 0}, _FINISHED),
}


@dataclass(frozen=True, slots=True)
class Webhook:
    """A turn that ended, or started to wait, at `happened_at`, and the number `tries` of this try. `number`
    distinguishes the waits of one turn. `usage`, `error` and the waiting `calls` are JSON values.
    """

    turn: UUID
    chat: UUID
    owner: str
    status: str
    stop_reason: str | None
    model: str
    usage: Any
    cost: float | None
    error: Any
    created_at: datetime
    ended_at: datetime | None
    tries: int
    number: int
    calls: Any
    happened_at: datetime
    trace: str | None = None


class Webhooks:
    """The queue of one kind of webhook: claims webhooks, and stores the outcomes of tries. An outcome may be stored
    twice. `answer` is the receiver's response, for operators.
    """

    def __init__(self, database: Database, kind: WebhookKind = "ended") -> None:
        self.kind = kind
        self._database = database

    async def claim(self, limit: int, lease: float) -> Sequence[Webhook]:
        """Claims up to `limit` due webhooks for `lease` seconds."""
        rows = await self._database.rows(CLAIM_WEBHOOKS[self.kind], limit=limit, lease=timedelta(seconds=lease))
        return [_webhook_from(row) for row in rows]

    async def delivered(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(WEBHOOK_DELIVERED[self.kind], turn=webhook.turn, number=webhook.number, answer=answer)

    async def failed(self, webhook: Webhook, answer: str, wait: float) -> None:
        """Makes the webhook due again in `wait` seconds, unless another replica has claimed it meanwhile."""
        await self._database.rows(
            WEBHOOK_FAILED[self.kind],
            turn=webhook.turn,
            number=webhook.number,
            tries=webhook.tries,
            answer=answer,
            wait=timedelta(seconds=wait),
        )

    async def given_up(self, webhook: Webhook, answer: str) -> None:
        await self._database.rows(
            WEBHOOK_GIVEN_UP[self.kind],
            turn=webhook.turn,
            number=webhook.number,
            tries=webhook.tries,
            answer=answer,
        )


def _webhook_from(row: Row) -> Webhook:
    return Webhook(
        turn=row["id"],
        chat=row["chat_id"],
        owner=row["owner"],
        status=row["status"],
        stop_reason=row["stop_reason"],
        model=row["model"],
        usage=from_json(row["usage"]),
        cost=None if row["cost"] is None else float(row["cost"]),
        error=from_json(row["error"]),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        tries=row["tries"],
        number=row["number"],
        calls=from_json(row["calls"]),
        happened_at=row["happened_at"],
        trace=row["trace"],
    )

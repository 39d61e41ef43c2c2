"""Stores exchanges that took place elsewhere, and finds them again by the digest of their history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.errors import Conflict
from turnstream.domain.turns import ENDED, Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import GET_NEWEST_OF_CHAT, KEEP_KEY, TICK, Draft, Exchanges
from turnstream.storage.contents import CHATS, TURNS
from turnstream.storage.database import Database, Statement, Transaction
from turnstream.storage.rows import columns_of, to_json
from turnstream.storage.runs.record import ADD_BLOCKS

RECORD_EXCHANGE = Statement(
    f"""
    WITH touched AS (
        UPDATE chats SET {TICK}, title = coalesce(title, :title) WHERE id = :chat RETURNING updated_at, owner
    ), user_turn AS (
        INSERT INTO turns (id, chat_id, parent_id, role, status, created_at, ended_at)
        SELECT :user_turn, :chat, :parent, 'user', 'complete', updated_at, updated_at FROM touched
    )
    INSERT INTO turns (
        id, chat_id, parent_id, role, request, tool_set, created_at, started_at, ended_at, attempt, status, stop_reason
    )
    SELECT :answer, :chat, :user_turn, 'assistant', kept.request, tool_set, updated_at, updated_at, updated_at, 1,
        'complete', 'end_turn'
    FROM touched, keep_tool_set(owner, CAST(:request AS json)) AS kept
    RETURNING id
    """,
    seals=[CHATS.named(id="chat"), TURNS.named(id="answer")],
)
RECORD_ROUNDS = Statement(
    """
    INSERT INTO rounds (turn_id, number, attempt, messages, stop_reason, sealed_by, started_at, sealed_at)
    SELECT CAST(:turn AS uuid), number, 1, 1, reason, 1, now(), now()
    FROM unnest(CAST(:numbers AS int[]), CAST(:reasons AS text[])) AS round (number, reason)
    """
)
# Newest first, because each key ends in a UUID of version 7.
FIND_BY_KEY = Statement(
    """
    SELECT chat_id, turn_id FROM idempotency_keys JOIN turns ON turns.id = turn_id
    WHERE owner = :owner AND key BETWEEN :first AND :last ORDER BY key DESC LIMIT :most
    """
)
GET_HISTORY_OF_TURN = Statement(
    """
    SELECT key FROM idempotency_keys
    WHERE turn_id = :turn AND owner = :owner AND starts_with(key, 'history ') LIMIT 1
    """
)
GET_UNSTORED = Statement("SELECT key FROM idempotency_keys WHERE owner = :owner AND key = :key")
_MOST = 20  # turns to examine, if many turns have the same history


@dataclass(frozen=True, slots=True)
class PastExchange:
    """A message and its answer. `stop_reasons` are the stop reasons of the answer's rounds."""

    message: Sequence[Block]
    answer: Sequence[Block]
    stop_reasons: Sequence[str]
    title: str | None = None


class Histories:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchanges = Exchanges(database)

    async def record(
        self, owner: str, chat: UUID, exchanges: Sequence[PastExchange], request: TurnRequest
    ) -> UUID | None:
        """Writes exchanges in order behind the newest turn; returns the id of the last answer. Raises NotFound, and
        Conflict while the newest turn is open.
        """
        async with self._exchanges.locked(owner, chat) as (connection, _):
            row = await connection.row(GET_NEWEST_OF_CHAT, chat=chat)
            if row is not None and row["status"] not in ENDED:
                raise Conflict(f"Turn {row['id']} has not ended; wait for its end or cancel the turn.")
            return await _write(connection, owner, chat, row["id"] if row else None, exchanges, request)

    async def record_in_new_chat(self, chat: Chat, exchanges: Sequence[PastExchange], request: TurnRequest) -> None:
        """Writes exchanges in a new chat."""
        async with self._exchanges.in_new_chat(chat, None) as draft:
            await behind(draft, exchanges, request)

    async def keep(self, owner: str, digest: bytes, turn: UUID) -> None:
        """Stores that a history with this digest led to the turn. The row expires like idempotency keys. A repeated
        call changes nothing.
        """
        key = f"history {digest.hex()} {turn.hex}"
        await self._database.row(KEEP_KEY, owner=owner, key=key, digest=digest, turn=turn, steer=None)

    async def is_kept(self, owner: str, turn: UUID) -> bool:
        """Returns whether a history's digest is stored for the turn."""
        return await self._database.row(GET_HISTORY_OF_TURN, owner=owner, turn=turn) is not None

    async def keep_unstored(self, turn: Turn, owner: str) -> None:
        """Stores that the chat of the turn is to be deleted after the turn's end."""
        key = f"unstored {turn.chat_id.hex}"
        await self._database.row(KEEP_KEY, owner=owner, key=key, digest=turn.chat_id.bytes, turn=turn.id, steer=None)

    async def is_unstored(self, owner: str, chat: UUID) -> bool:
        return await self._database.row(GET_UNSTORED, owner=owner, key=f"unstored {chat.hex}") is not None

    async def find(self, owner: str, digest: bytes) -> list[tuple[UUID, UUID]]:
        """Returns the newest turns that follow a history with this digest, as pairs of chat and turn."""
        first = f"history {digest.hex()} "
        rows = await self._database.rows(
            FIND_BY_KEY, owner=owner, first=first + "0" * 32, last=first + "f" * 32, most=_MOST
        )
        return [(row["chat_id"], row["turn_id"]) for row in rows]


def histories_of(services: Services) -> Histories:
    return Histories(services.storage.of_owner)


async def behind(draft: Draft, exchanges: Sequence[PastExchange], request: TurnRequest) -> Draft:
    """Writes the exchanges in the draft's transaction. Returns a draft whose message follows the last exchange."""
    before = draft.before.id if draft.before else None
    last = await _write(draft.connection, draft.chat.owner, draft.chat.id, before, exchanges, request)
    return replace(draft, before=Turn(last, draft.chat.id, None, "assistant", "complete")) if last else draft


async def _write(
    connection: Transaction,
    owner: str,
    chat: UUID,
    before: UUID | None,
    exchanges: Sequence[PastExchange],
    request: TurnRequest,
) -> UUID | None:
    """Writes the exchanges. Returns the id of the last answer, or `before` if there are no exchanges."""
    for exchange in exchanges:
        user_turn, answer = new_id(), new_id()
        values = {"owner": owner, "title": exchange.title, "request": to_json(request), "parent": before}
        await connection.row(RECORD_EXCHANGE, chat=chat, user_turn=user_turn, answer=answer, **values)
        await connection.rows(ADD_BLOCKS, owner=owner, turn=user_turn, **columns_of(exchange.message))
        await connection.rows(ADD_BLOCKS, owner=owner, turn=answer, **columns_of(exchange.answer))
        numbers = list(range(1, len(exchange.stop_reasons) + 1))
        await connection.rows(RECORD_ROUNDS, turn=answer, numbers=numbers, reasons=list(exchange.stop_reasons))
        before = answer
    return before

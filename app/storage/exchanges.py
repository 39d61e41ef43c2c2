"""Making an exchange: a user turn and the assistant turn that answers it, in one transaction."""

from dataclasses import dataclass
from uuid import UUID

from app.domain.blocks import Block
from app.domain.errors import Conflict, NotFound, RequestRefused
from app.domain.ids import new_id
from app.domain.turns import TERMINAL, TurnRequest
from app.storage.chats import CREATE_CHAT, Chat
from app.storage.database import Connection, Database, Statement
from app.storage.rows import columns_of, to_json

LOCK_CHAT = Statement("SELECT id FROM chats WHERE id = :chat AND owner = :owner FOR NO KEY UPDATE")
GET_PARENT = Statement("SELECT status FROM turns WHERE id = :turn AND chat_id = :chat")
GET_NEWEST_OF_CHAT = Statement("SELECT id FROM turns WHERE chat_id = :chat ORDER BY id DESC LIMIT 1")
GET_RUNNING_SIBLING = Statement(
    """
    SELECT id FROM turns
    WHERE chat_id = :chat AND parent_id = :parent AND status IN ('queued', 'running', 'waiting')
    """
)
CREATE_USER_TURN = Statement(
    """
    WITH turn AS (
        INSERT INTO turns (id, chat_id, parent_id, role, status, ended_at)
        VALUES (:id, :chat, :parent, 'user', 'complete', now())
        RETURNING *
    ), contents AS (
        INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
        SELECT turn.id, b.index, 0, 0, b.type, b.text, b.data
        FROM turn, unnest(
            CAST(:indexes AS int[]), CAST(:types AS text[]), CAST(:texts AS text[]), CAST(:datas AS json[])
        ) AS b (index, type, text, data)
    )
    SELECT * FROM turn
    """
)
CREATE_ASSISTANT_TURN = Statement(
    """
    WITH touched AS (
        UPDATE chats SET updated_at = now(), title = coalesce(title, :title) WHERE id = :chat
    )
    INSERT INTO turns (id, chat_id, parent_id, role, status, request)
    VALUES (:id, :chat, :parent, 'assistant', 'queued', CAST(:request AS json))
    RETURNING *
    """
)
LOCK_KEY = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:owner || chr(10) || :key, 0))")
GET_KEY = Statement(
    """
    SELECT digest, turn_id, chat_id FROM idempotency_keys JOIN turns ON turns.id = turn_id
    WHERE owner = :owner AND key = :key
    """
)
KEEP_KEY = Statement(
    """
    INSERT INTO idempotency_keys (owner, key, digest, turn_id) VALUES (:owner, :key, :digest, :turn)
    RETURNING turn_id
    """
)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The client's key, and a digest (32 bytes) of what it asked for."""

    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Made:
    """The assistant turn of an exchange, and its chat. `again` is true when an earlier request had made it."""

    chat: UUID
    turn: UUID
    again: bool = False


@dataclass(frozen=True, slots=True)
class NewExchange:
    """`parent` is the assistant turn to go on from. `follows_newest` says that the client left the choice to us, so
    that the newest turn must still be the parent when the exchange is made. `new_chat` is made in the same transaction.
    """

    owner: str
    chat: UUID
    parent: UUID | None
    blocks: tuple[Block, ...]
    request: TurnRequest
    title: str | None = None
    follows_newest: bool = False
    new_chat: Chat | None = None


class Exchanges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, owner: str, key: IdempotencyKey) -> Made | None:
        """What an earlier request with this key made. Raises RequestRefused when it asked for something else."""
        row = await self._database.row(GET_KEY, owner=owner, key=key.key)
        if row is None:
            return None
        if row["digest"] != key.digest:
            raise RequestRefused(
                "this key was used for a different request; use a new key for a new request",
                field="Idempotency-Key",
            )
        return Made(row["chat_id"], row["turn_id"], again=True)

    async def create(self, new: NewExchange, key: IdempotencyKey | None) -> Made:
        """Raises NotFound and Conflict."""
        async with self._database.transaction() as connection:
            if key and (made := await self._claim_key(connection, new.owner, key)):
                return made
            await _prepare_chat(connection, new)
            user_turn = new_id()
            await connection.row(
                CREATE_USER_TURN, id=user_turn, chat=new.chat, parent=new.parent, **columns_of(new.blocks)
            )
            turn = await _create_assistant_turn(connection, new.chat, user_turn, new.request, new.title)
            await _keep_key(connection, new.owner, key, turn)
        return Made(new.chat, turn)

    async def regenerate(
        self, owner: str, chat: UUID, user_turn: UUID, request: TurnRequest, key: IdempotencyKey | None
    ) -> Made:
        """Another answer to `user_turn`. Raises NotFound, and Conflict while one is still being written."""
        async with self._database.transaction() as connection:
            if key and (made := await self._claim_key(connection, owner, key)):
                return made
            await _lock_chat(connection, owner, chat)
            running = await connection.row(GET_RUNNING_SIBLING, chat=chat, parent=user_turn)
            if running is not None:
                raise _still_running(running["id"])
            turn = await _create_assistant_turn(connection, chat, user_turn, request, None)
            await _keep_key(connection, owner, key, turn)
        return Made(chat, turn)

    async def _claim_key(self, connection: Connection, owner: str, key: IdempotencyKey) -> Made | None:
        await connection.row(LOCK_KEY, owner=owner, key=key.key)
        return await self.find(owner, key)


async def _prepare_chat(connection: Connection, new: NewExchange) -> None:
    if new.new_chat is not None:
        await connection.row(
            CREATE_CHAT,
            chat=new.chat,
            owner=new.owner,
            title=new.new_chat.title,
            system_prompt=new.new_chat.system_prompt,
            settings=to_json(new.new_chat.settings),
        )
        return
    await _lock_chat(connection, new.owner, new.chat)
    if new.follows_newest:
        newest = await connection.row(GET_NEWEST_OF_CHAT, chat=new.chat)
        if (newest["id"] if newest else None) != new.parent:
            raise Conflict("another turn was added to the chat at the same moment; look at it, then try again")
    if new.parent is not None:
        parent = await connection.row(GET_PARENT, chat=new.chat, turn=new.parent)
        if parent is None:
            raise RequestRefused(f"there is no turn {new.parent} in this chat", field="parent_id")
        if parent["status"] not in TERMINAL:
            raise _still_running(new.parent)


async def _lock_chat(connection: Connection, owner: str, chat: UUID) -> None:
    if await connection.row(LOCK_CHAT, chat=chat, owner=owner) is None:
        raise NotFound(f"there is no chat {chat}")


def _still_running(turn: UUID) -> Conflict:
    return Conflict(f"turn {turn} is still running on this branch; wait for its end, or cancel it")


async def _create_assistant_turn(
    connection: Connection, chat: UUID, user_turn: UUID, request: TurnRequest, title: str | None
) -> UUID:
    turn = new_id()
    await connection.row(
        CREATE_ASSISTANT_TURN, id=turn, chat=chat, parent=user_turn, request=to_json(request), title=title
    )
    return turn


async def _keep_key(connection: Connection, owner: str, key: IdempotencyKey | None, turn: UUID) -> None:
    if key is not None:
        await connection.row(KEEP_KEY, owner=owner, key=key.key, digest=key.digest, turn=turn)

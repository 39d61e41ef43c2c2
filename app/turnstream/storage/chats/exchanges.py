"""Exchanges: a user turn and its assistant turn, written in one transaction."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal
from uuid import UUID

from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat, OnBusy, Placement, branch_is_busy, place_message
from turnstream.domain.errors import Conflict, NotFound, RequestRefused, StatementRefused, TooMany
from turnstream.domain.turns import OPEN, Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.chats.chats import CREATE_CHAT, LOCK_CHAT, chat_from
from turnstream.storage.chats.turns import CANCEL_TURN, GET_TURN, Turns, reads_turns
from turnstream.storage.contents import CHATS, NEW_BLOCKS, REQUESTS, STEERS, TURNS
from turnstream.storage.database import Database, Statement, Transaction
from turnstream.storage.rows import OPEN_STATUSES, WITH_TOOLS, columns_of, from_json, to_json, turn_from

# Reads the newest answer, not the newest turn. While a large branch is being deleted, the newest turn may be a user
# turn, and a message cannot follow a user turn.
GET_NEWEST_OF_CHAT = reads_turns(
    f"""
    SELECT {WITH_TOOLS} FROM turns
    WHERE chat_id = :chat AND role = 'assistant' ORDER BY created_at DESC, id DESC LIMIT 1
    """
)
# Reads the chat and its newest answer, if any, in one round trip, for a message without a parent.
GET_CHAT_AND_NEWEST = Statement(
    f"""
    SELECT newest.*, title, system_prompt, settings, chats.created_at AS chat_created_at, updated_at
    FROM chats LEFT JOIN LATERAL (
        SELECT {WITH_TOOLS} FROM turns
        WHERE chat_id = chats.id AND role = 'assistant' ORDER BY created_at DESC, id DESC LIMIT 1
    ) AS newest ON true
    WHERE chats.id = :chat AND chats.owner = :owner
    """,
    opens=[TURNS, CHATS.named(id="chat")],
)
GET_TURN_OF_CHAT = reads_turns(f"SELECT {WITH_TOOLS} FROM turns WHERE chat_id = :chat AND id = :turn")
GET_RUNNING_SIBLING = reads_turns(
    f"""
    SELECT {WITH_TOOLS} FROM turns
    WHERE chat_id = :chat AND parent_id = :parent AND status IN {OPEN_STATUSES}
    """
)
# Reads the path from an answer towards the root: all open turns, and the ended turn before them.
GET_BRANCH = reads_turns(
    f"""
    WITH RECURSIVE branch AS (
        SELECT id, parent_id, status, 0 AS depth FROM turns WHERE chat_id = :chat AND id = :turn
        UNION ALL
        SELECT before.id, before.parent_id, before.status, depth + 1 FROM branch
        JOIN turns AS question ON question.id = branch.parent_id
        JOIN turns AS before ON before.id = question.parent_id
        WHERE branch.status IN {OPEN_STATUSES}
    )
    SELECT {WITH_TOOLS} FROM branch JOIN turns ON turns.id = branch.id ORDER BY depth DESC
    """
)
LOCK_OPEN_TURN = Statement(f"SELECT id FROM turns WHERE id = :turn AND status IN {OPEN_STATUSES} FOR NO KEY UPDATE")
# This statement and the statement that ends the turn lock the same row, so one waits for the other. The later statement
# sees the earlier one, and wakes the worker.
MARK_FOLLOWED = Statement(f"UPDATE turns SET arrivals = arrivals WHERE id = :turn AND status IN {OPEN_STATUSES}")
# Turns get their time from their locked chat, so turns become visible in the order of their times.
TICK = "updated_at = greatest(clock_timestamp(), updated_at + interval '1 microsecond')"
# The statement does not return the new turns: row-level security would then look up their chat, and cannot see a chat
# that the same statement inserts. One INSERT adds both turns, because each INSERT prepares checks and indexes.
_EXCHANGE = """
    , new_turns AS (
        INSERT INTO turns (
            id, chat_id, parent_id, role, request, tool_set, queue_owner, created_at,
            ended_at, status, attempt, replica, started_at
        )
        SELECT CAST(:user_turn AS uuid), CAST(:chat AS uuid), CAST(:parent AS uuid), 'user', CAST(NULL AS json),
            CAST(NULL AS bytea), CAST(NULL AS text), updated_at, updated_at, 'complete', 0, CAST(NULL AS uuid),
            CAST(NULL AS timestamptz)
        FROM touched
        UNION ALL
        SELECT :assistant_turn, :chat, :user_turn, 'assistant', kept.request, tool_set, owner, updated_at, NULL, {begun}
        FROM touched, keep_tool_set(owner, CAST(:request AS json)) AS kept
    ), contents AS (
        INSERT INTO blocks (turn_id, index, round, attempt, type, text, data, notes)
        SELECT :user_turn, b.index, 0, 0, b.type, b.text, b.data, b.notes
        FROM touched, unnest(
            CAST(:indexes AS int[]), CAST(:types AS text[]), CAST(:texts AS text[]), CAST(:datas AS json[]),
            CAST(:notes AS json[])
        ) AS b (index, type, text, data, notes)
    )
"""
_CREATED = " SELECT updated_at FROM touched"
_QUEUED = _EXCHANGE.format(begun="'queued', 0, NULL, NULL") + _CREATED
# If the key is taken, Postgres refuses the statement, and nothing is written.
_BEGUN = f"""
    {_EXCHANGE.format(begun="'running', 1, :replica, updated_at")}, kept AS (
        INSERT INTO idempotency_keys (owner, key, digest, turn_id)
        SELECT CAST(:owner AS text), CAST(:key AS text), CAST(:digest AS bytea), :assistant_turn FROM touched
        WHERE CAST(:key AS text) IS NOT NULL
    ) {_CREATED}
"""
_writes = partial(
    Statement,
    seals=[NEW_BLOCKS.named(turn_id="user_turn"), CHATS.named(id="chat"), REQUESTS.named(id="assistant_turn")],
)
CREATE_EXCHANGE = _writes(
    f"""
    WITH touched AS (
        UPDATE chats SET {TICK}, title = coalesce(title, :title) WHERE id = :chat RETURNING updated_at, owner
    )
    {_QUEUED}
    """,
)
# Reserves a slot among the running turns of an owner, or in the queue: other transactions wait until this transaction
# ends (`take_place`). To avoid deadlocks, an existing chat is always locked before its owner.
_MAY_RUN = "(CAST(:most_running AS int) IS NULL OR take_place({owner}, :most_running, NULL))"
TAKE_PLACE = Statement("SELECT take_place(:owner, NULL, :most) AS taken")
# The replica that writes the turn claims it. The result is empty if the chat has changed since it was read, the owner
# has no free slot, or the previous answer is open. A failover may lose the end of an answer, which then runs again.
BEGIN_EXCHANGE = _writes(
    f"""
    WITH locked AS MATERIALIZED (
        SELECT id, owner FROM chats
        WHERE id = :chat AND owner = :owner AND updated_at = :updated_at
          AND system_prompt IS NOT DISTINCT FROM :system_prompt AND settings::text = :settings
          AND NOT EXISTS (SELECT FROM turns WHERE id = :parent AND status IN {OPEN_STATUSES})
        FOR NO KEY UPDATE
    ), touched AS (
        UPDATE chats SET {TICK}, title = coalesce(title, :title) FROM locked
        WHERE chats.id = locked.id AND {_MAY_RUN.format(owner="locked.owner")}
        RETURNING updated_at, locked.owner
    )
    {_BEGUN}
    """,
)
BEGIN_CHAT = _writes(
    f"""
    WITH touched AS (
        INSERT INTO chats (id, owner, title, system_prompt, settings)
        SELECT :chat, CAST(:owner AS text), :title, :system_prompt, CAST(:settings AS json)
        WHERE {_MAY_RUN.format(owner=":owner")}
        ON CONFLICT (id) DO NOTHING
        RETURNING updated_at, owner
    )
    {_BEGUN}
    """,
)
CREATE_SIBLING = Statement(
    f"""
    WITH touched AS (UPDATE chats SET {TICK} WHERE id = :chat RETURNING updated_at, owner)
    INSERT INTO turns (id, chat_id, parent_id, role, status, created_at, queue_owner, request, tool_set)
    SELECT :id, :chat, :parent, 'assistant', 'queued', updated_at, owner, kept.request, tool_set
    FROM touched, keep_tool_set(owner, CAST(:request AS json)) AS kept
    RETURNING id, created_at
    """,
    seals=[REQUESTS],
)
# If a commit waits in vain for a synchronous standby, only the primary has its key. So the server acknowledges a key
# that it finds only after another commit, which also waits for that standby. The message in the WAL makes this read a
# commit.
GET_KEY = Statement(
    """
    SELECT digest, turn_id, steer_id, chat_id, parent_id, pg_logical_emit_message(true, 'turnstream', key),
        turn_id IS NULL OR EXISTS (
            SELECT FROM steers WHERE steers.id = steer_id AND taken_at IS NOT NULL AND blocks::text = '[]'
        ) AS is_withdrawn
    FROM idempotency_keys LEFT JOIN turns ON turns.id = turn_id
    WHERE owner = :owner AND key = :key
    """
)
# Counts an answer or a steer that arrives at an open turn. A waiting turn goes back into the queue.
ARRIVE = Statement(
    """
    UPDATE turns
    SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
    WHERE id = :turn
    RETURNING status
    """
)
# A message that the person sends instead of an answer supersedes every open ask.
STEER = Statement(
    """
    WITH superseded AS (
        UPDATE asks SET answer = CAST(:answer AS json), answered_at = now() WHERE turn_id = :turn AND answer IS NULL
    )
    INSERT INTO steers (id, turn_id, blocks) VALUES (:steer, :turn, CAST(:blocks AS json))
    """,
    seals=[STEERS.named(turn_id="turn", id="steer")],
)
KEEP_KEY = Statement(
    """
    INSERT INTO idempotency_keys (owner, key, digest, turn_id, steer_id)
    VALUES (:owner, :key, :digest, :turn, :steer)
    ON CONFLICT DO NOTHING RETURNING turn_id
    """
)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The idempotency key that a client sent, and a digest (32 bytes) of the client's request."""

    key: str
    digest: bytes


class KeyTaken(Exception):
    """An earlier request has used the key."""


# The answer that a message follows; None for a message at the root of the chat.
Parent = UUID | Literal["newest"] | None


@dataclass(frozen=True, slots=True)
class Target:
    """The position that a client requests for its message in a chat."""

    owner: str
    chat: UUID
    parent: Parent = "newest"
    on_busy: OnBusy = "reject"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user turn and its assistant turn. `steered`: the message is a steer to the assistant turn."""

    user_turn: Turn
    assistant_turn: Turn
    steered: bool = False


@dataclass(frozen=True, slots=True)
class NewExchange:
    """A message to write, with the request of its answer. A chat without a title gets this `title`."""

    blocks: Sequence[Block]
    request: TurnRequest
    title: str | None
    key: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a message, as read without a lock: after the answer `before`, which may be open, or at the root.
    `new`: the message creates the chat.
    """

    chat: Chat
    before: Turn | None = None
    new: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A position in the tree, locked until the end of the transaction: no other request can add to the chat.

    `before` is the answer that a message follows, or the answer that gets a sibling; its contents are not loaded.
    `steered` is the open turn that gets the message as a steer. The server cancels the turns in `interrupted`.
    """

    chat: Chat
    before: Turn | None
    connection: Transaction
    _key: IdempotencyKey | None
    steered: Turn | None = None
    interrupted: tuple[UUID, ...] = ()
    _most_queued: int | None = None

    async def create(self, blocks: Sequence[Block], request: TurnRequest, title: str | None) -> Exchange:
        """Inserts a user turn after `before`, and its assistant turn. Raises KeyTaken and TooMany."""
        await take_queued_place(self.connection, self.chat.owner, self._most_queued)
        chat, parent = self.chat.id, self.before.id if self.before else None
        user_turn, assistant_turn = new_id(), new_id()
        row = await self.connection.row(
            CREATE_EXCHANGE,
            owner=self.chat.owner,
            chat=chat,
            title=title,
            user_turn=user_turn,
            parent=parent,
            assistant_turn=assistant_turn,
            request=to_json(request),
            **columns_of(blocks),
        )
        assert row is not None
        await self._keep_key(assistant_turn)
        created_at = row["updated_at"]
        return Exchange(
            _user_turn(user_turn, chat, parent, blocks, created_at),
            Turn(assistant_turn, chat, user_turn, "assistant", "queued", request=request, created_at=created_at),
        )

    async def create_sibling(self, request: TurnRequest) -> Turn:
        """Inserts another answer to the user turn of `before`. Raises KeyTaken and TooMany."""
        assert self.before is not None
        await take_queued_place(self.connection, self.chat.owner, self._most_queued)
        chat, parent = self.chat.id, self.before.parent_id
        values = {"id": new_id(), "owner": self.chat.owner, "chat": chat, "parent": parent, "request": to_json(request)}
        row = await self.connection.row(CREATE_SIBLING, **values)
        assert row is not None
        await self._keep_key(row["id"])
        return Turn(row["id"], chat, parent, "assistant", "queued", request=request, created_at=row["created_at"])

    async def steer(self, blocks: Sequence[Block]) -> Exchange:
        """Adds `blocks` to the open turn. Raises KeyTaken."""
        assert self.steered is not None
        turn, steer = self.steered.id, new_id()
        answer = to_json(AskAnswer("superseded"))
        await self.connection.rows(STEER, steer=steer, turn=turn, blocks=to_json(blocks), answer=answer)
        await self.connection.row(ARRIVE, turn=turn)
        await self._keep_key(turn, steer)
        return Exchange(self.steered, self.steered, steered=True)

    async def _keep_key(self, turn: UUID, steer: UUID | None = None) -> None:
        key = self._key
        if key and not await self.connection.row(
            KEEP_KEY, owner=self.chat.owner, key=key.key, digest=key.digest, turn=turn, steer=steer
        ):
            raise KeyTaken


class Exchanges:
    """Writes exchanges. Each draft is one transaction, and raises KeyTaken if its key was used before."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns = Turns(database)

    async def knows(self, owner: str, key: IdempotencyKey | None) -> bool:
        """Whether any request has used the key."""
        return key is not None and await self._database.row(GET_KEY, owner=owner, key=key.key) is not None

    async def find(self, owner: str, key: IdempotencyKey) -> Exchange | None:
        """Returns the exchange of the first request with this key. Raises RequestRefused for a different request, and
        Conflict if the message was withdrawn.
        """
        row = await self._database.row(GET_KEY, owner=owner, key=key.key)
        if row is None:
            return None
        if row["digest"] != key.digest:
            raise key_refused()
        if row["is_withdrawn"]:
            raise Conflict("The message of the first request with this key was withdrawn.", code="withdrawn")
        chat = row["chat_id"]
        return Exchange(
            await self._turns.get(owner, chat, row["parent_id"]),
            await self._turns.get(owner, chat, row["turn_id"]),
            steered=row["steer_id"] is not None,
        )

    async def position(self, target: Target) -> Position:
        """Reads the position of a message without a lock. Raises NotFound, RequestRefused, Conflict as `after` does."""
        row = await self._database.row(GET_CHAT_AND_NEWEST, chat=target.chat, owner=target.owner)
        if row is None:
            raise NotFound(f"There is no chat {target.chat}.")
        chat = Chat(
            id=target.chat,
            owner=target.owner,
            title=row["title"],
            system_prompt=row["system_prompt"],
            settings=from_json(row["settings"]),
            created_at=row["chat_created_at"],
            updated_at=row["updated_at"],
        )
        if target.parent == "newest" and (row["id"] is None or row["status"] not in OPEN):
            return Position(chat, turn_from(row) if row["id"] else None)
        return Position(chat, (await placement(self._database, target)).before)

    async def answer(self, owner: str, chat: UUID, turn: UUID) -> Turn:
        """Returns the answer that gets a new sibling, without its contents. Raises NotFound and Conflict."""
        row = await self._database.row(GET_TURN, owner=owner, chat=chat, turn=turn)
        if row is None:
            raise NotFound(f"There is no turn {turn} in chat {chat}.")
        if row["role"] == "user":
            raise Conflict("A user turn cannot be generated again; name the assistant turn that answers it.")
        return turn_from(row)

    async def begin(
        self, position: Position, message: NewExchange, replica: UUID, most_running: int | None = None
    ) -> Exchange | None:
        """Writes a message, and claims its answer for `replica`, in one statement. Returns None if the previous answer
        is open, the owner has `most_running` running turns or any queued turn, the position has changed, or the key is
        taken. The caller finds the reason in the transaction of `after` or `in_new_chat`.
        """
        if position.before is not None and not position.before.ended:
            return None
        chat, parent = position.chat, position.before.id if position.before else None
        statement = BEGIN_CHAT if position.new else BEGIN_EXCHANGE
        values = {} if position.new else {"updated_at": chat.updated_at}
        key, row = message.key, None
        user_turn, assistant_turn = new_id(), new_id()
        with suppress(StatementRefused):
            row = await self._database.row(
                statement,
                chat=chat.id,
                owner=chat.owner,
                title=message.title if chat.title is None else chat.title,
                system_prompt=chat.system_prompt,
                settings=to_json(chat.settings),
                user_turn=user_turn,
                parent=parent,
                assistant_turn=assistant_turn,
                request=to_json(message.request),
                replica=replica,
                most_running=most_running,
                key=key and key.key,
                digest=key and key.digest,
                **columns_of(message.blocks),
                **values,
            )
        if row is None:
            return None
        begun_at = row["updated_at"]
        return Exchange(
            _user_turn(user_turn, chat.id, parent, message.blocks, begun_at),
            Turn(
                assistant_turn,
                chat.id,
                user_turn,
                "assistant",
                "running",
                attempt=1,
                request=message.request,
                created_at=begun_at,
                started_at=begun_at,
            ),
        )

    @asynccontextmanager
    async def in_new_chat(
        self, chat: Chat, key: IdempotencyKey | None, most_queued: int | None = None
    ) -> AsyncIterator[Draft]:
        """Creates a chat, and yields a draft for its first message. Raises KeyTaken, Conflict if the chat exists, and
        TooMany if the owner has `most_queued` queued turns.
        """
        async with self._database.transaction() as connection:
            await take_queued_place(connection, chat.owner, most_queued)
            if key and await connection.row(GET_KEY, owner=chat.owner, key=key.key):
                raise KeyTaken
            row = await connection.row(
                CREATE_CHAT,
                chat=chat.id,
                owner=chat.owner,
                title=chat.title,
                system_prompt=chat.system_prompt,
                settings=to_json(chat.settings),
            )
            if row is None:
                raise Conflict(f"Chat {chat.id} exists already.")
            yield Draft(chat, None, connection, key)

    @asynccontextmanager
    async def after(
        self,
        target: Target,
        key: IdempotencyKey | None,
        read: Position | None = None,
        most_queued: int | None = None,
    ) -> AsyncIterator[Draft]:
        """Yields a draft at `target`. Uses the position in `read` if it is still valid. The owner may have
        `most_queued` turns in the queue. Raises NotFound, RequestRefused, and Conflict if the branch is busy and
        `on_busy` is `reject`.
        """
        async with self.locked(target.owner, target.chat, key) as (connection, chat):
            if read is not None and _is_unchanged(read, chat):
                yield Draft(chat, read.before, connection, key, _most_queued=most_queued)
                return
            place = await placement(connection, target)
            for turn in place.interrupted:
                await connection.row(CANCEL_TURN, turn=turn, withdraws=False)
            steered = await lock_first_open(connection, place.steerable)
            if place.before is not None and not place.before.ended:
                await connection.row(MARK_FOLLOWED, turn=place.before.id)
            yield Draft(chat, place.before, connection, key, steered, place.interrupted, most_queued)

    @asynccontextmanager
    async def beside(
        self, owner: str, answer: Turn, key: IdempotencyKey | None, most_queued: int | None = None
    ) -> AsyncIterator[Draft]:
        """Yields a draft for a sibling of `answer`. Raises NotFound, and Conflict while another answer is open."""
        async with self.locked(owner, answer.chat_id, key) as (connection, chat):
            if await connection.row(GET_TURN_OF_CHAT, chat=chat.id, turn=answer.id) is None:
                raise NotFound(f"There is no turn {answer.id} in chat {chat.id}.")  # deleted meanwhile
            running = await connection.row(GET_RUNNING_SIBLING, chat=chat.id, parent=answer.parent_id)
            if running is not None:
                raise branch_is_busy(turn_from(running))
            yield Draft(chat, answer, connection, key, _most_queued=most_queued)

    @asynccontextmanager
    async def locked(
        self, owner: str, chat: UUID, key: IdempotencyKey | None = None
    ) -> AsyncIterator[tuple[Transaction, Chat]]:
        """Yields a transaction that keeps others from changing the tree of the chat. Raises NotFound and KeyTaken."""
        async with self._database.transaction() as connection:
            row = await connection.row(LOCK_CHAT, chat=chat, owner=owner)
            if row is None:
                raise NotFound(f"There is no chat {chat}.")
            if key and await connection.row(GET_KEY, owner=owner, key=key.key):
                raise KeyTaken
            yield connection, chat_from(row)


async def take_queued_place(connection: Transaction, owner: str, most: int | None) -> None:
    """Reserves a queue slot for a turn of the transaction. Raises TooMany if the owner has `most` queued turns."""
    if most is None:
        return
    row = await connection.row(TAKE_PLACE, owner=owner, most=most)
    if row is None or not row["taken"]:
        detail = f"The limit of turns in the queue, {most} of an owner, is reached: wait for one."
        raise TooMany(detail, 5, "queued_turns")


def _user_turn(id: UUID, chat: UUID, parent: UUID | None, blocks: Sequence[Block], at: datetime) -> Turn:
    return Turn(id, chat, parent, "user", "complete", created_at=at, ended_at=at, blocks=tuple(blocks))


async def placement(database: Database | Transaction, target: Target) -> Placement:
    """Decides the position of a message. Raises RequestRefused and Conflict as `Exchanges.after` does."""
    row, field = None, "parent_id"
    if target.parent == "newest":
        row = await database.row(GET_NEWEST_OF_CHAT, chat=target.chat)
    elif target.parent is not None:
        row = await database.row(GET_TURN_OF_CHAT, chat=target.chat, turn=target.parent)
        expected = "`parent_id` must be the id of an assistant turn"
        if row is None:
            detail = f"{expected} of this chat, which has no turn {target.parent}."
            raise RequestRefused(detail, field=field)
        if row["role"] == "user":
            raise RequestRefused(f"{expected}, not of a user turn.", field=field)
    before = turn_from(row) if row else None
    if before is None or before.ended:
        return Placement(before)
    branch = [turn_from(row) for row in await database.rows(GET_BRANCH, chat=target.chat, turn=before.id)]
    return place_message(before, branch, target.on_busy)


async def lock_first_open(connection: Transaction, turns: Sequence[Turn]) -> Turn | None:
    """Returns the first open turn of `turns`, locked so that it cannot end before the transaction ends."""
    for turn in turns:
        if await connection.row(LOCK_OPEN_TURN, turn=turn.id):
            return turn
    return None


def _is_unchanged(read: Position, locked: Chat) -> bool:
    """Whether `read` is still valid. Each new turn of a chat changes `updated_at`, and an answer never changes after
    its end.
    """
    return (read.before is None or read.before.ended) and read.chat == locked


def key_refused() -> RequestRefused:
    detail = "`Idempotency-Key` was used for a different request; send a new key with a new request."
    return RequestRefused(detail, field="Idempotency-Key", code="idempotency_key_reused")

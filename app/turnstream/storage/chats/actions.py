"""Stores people's answers to asks. A running turn has one writer, which reads each answer from the row of its ask."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from turnstream.domain.asks import QUESTIONS, Ask, AskAnswer, AskKind
from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict, Forbidden, NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.domain.turns import ENDED, Turn
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import ARRIVE, GET_KEY, KEEP_KEY, STEER, IdempotencyKey, key_refused
from turnstream.storage.chats.turns import Turns
from turnstream.storage.contents import ASKS
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.rows import IS_ASKED, OPEN_STATUSES, ask_from, to_json

LOCK_TURN_OF = Statement(
    """
    SELECT turns.id, turns.status FROM turns JOIN chats ON chats.id = chat_id
    WHERE turns.id = :turn AND chat_id = :chat AND owner = :owner
    FOR NO KEY UPDATE OF turns FOR KEY SHARE OF chats
    """
)
GET_OPEN_ASKS = Statement(
    f"""
    SELECT asks.*, expires_at <= now() AS expired, NOT {IS_ASKED} AS gone,
        to_char(answered_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS at
    FROM asks JOIN turns ON turns.id = turn_id WHERE turn_id = :turn ORDER BY round DESC
    """,
    opens=[ASKS],
)
# The triggers of the audit trail run after the statement, and record the actor. Before the statement, another trigger
# compares the principals of the request with the approvers of the ask.
ANSWER_ASKS = Statement(
    """
    UPDATE asks SET answer = CAST(a.answer AS json), answered_at = now()
    FROM unnest(CAST(:rounds AS int[]), CAST(:tool_use_ids AS text[]), CAST(:answers AS text[]))
        AS a (round, tool_use_id, answer), (
            SELECT set_config('turnstream.actor', :actor, true) AS name,
                set_config('turnstream.principals', :principals, true) AS names
        ) AS actor
    WHERE actor.name IS NOT NULL AND actor.names IS NOT NULL AND turn_id = :turn
      AND asks.round = a.round AND asks.tool_use_id = a.tool_use_id
    """,
    seals=[ASKS.named(turn_id="turn", round="rounds", tool_use_id="tool_use_ids", answer="answers")],
)
# Without NOT EXISTS, lists would show two equal grants.
KEEP_GRANT = Statement(
    """
    INSERT INTO grants (id, chat_id, tool, digest, "when", turn_id, tool_use_id)
    SELECT :id, :chat, CAST(:tool AS text), CAST(:digest AS text), CAST(:when AS json), :turn, :tool_use_id
    WHERE NOT EXISTS (
        SELECT FROM grants
        WHERE chat_id = :chat AND revoked_at IS NULL AND tool = :tool AND digest = :digest
          AND "when"::text IS NOT DISTINCT FROM CAST(:when AS json)::text
    )
    """
)
COUNT_GRANTS = Statement("SELECT count(*) AS number FROM grants WHERE chat_id = :chat AND revoked_at IS NULL")
MOST_GRANTS = 100  # the most grants of a chat, because the gate reads all of them

# SKIP LOCKED: the holder of a lock may be writing an answer, and the two statements would wait for each other. The next
# sweep handles the skipped turn.
EXPIRE_ASKS = Statement(
    f"""
    WITH late AS (
        SELECT id FROM turns WHERE id IN (SELECT turn_id FROM asks WHERE answer IS NULL AND expires_at <= now())
        FOR NO KEY UPDATE SKIP LOCKED
    ), expired AS (
        UPDATE asks SET answer = CAST(:answer AS json), answered_at = now()
        FROM late WHERE turn_id = late.id AND answer IS NULL AND expires_at <= now()
        RETURNING turn_id
    )
    UPDATE turns
    SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
    WHERE id IN (SELECT turn_id FROM expired) AND status IN {OPEN_STATUSES}
    RETURNING id
    """
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a person to the ask for `tool_use_id`. `digest` identifies the input that the person saw; a result
    needs no digest. `field` is the path of the answer in the request. `remember`: the answer also allows further calls
    of the tool in the chat, if their inputs meet the condition `when` (JSON text). A decision that `follows` from
    another decision of the request is ignored if the call already has an answer. `elicited`: the answer is for a
    question, whose id is `tool_use_id`.
    """

    tool_use_id: str
    digest: str | None
    answer: AskAnswer
    field: str
    remember: bool = False
    when: str | None = None
    follows: bool = False
    elicited: bool = False

    @property
    def to(self) -> Collection[AskKind]:
        """The kinds of asks that this answer fits."""
        if self.elicited:
            return QUESTIONS
        return {"client"} if self.answer.kind == "result" else {"approval"}


class Actions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns = Turns(database)

    async def answer(
        self,
        owner: str,
        chat: UUID,
        turn: UUID,
        decisions: Sequence[Decision],
        key: IdempotencyKey | None,
        identity: Identity | None = None,
        message: Sequence[Block] = (),
    ) -> Turn:
        """Stores all decisions and a `message` to the turn, or nothing. `identity` is the person who decides, by
        default the owner. If an equal request has used the key before, stores nothing again. Raises NotFound,
        RequestRefused, Forbidden, Conflict.
        """
        async with self._database.transaction() as connection:
            row = await connection.row(LOCK_TURN_OF, owner=owner, chat=chat, turn=turn)
            if row is None:
                raise NotFound(f"There is no turn {turn} in chat {chat}.")
            known = await connection.row(GET_KEY, owner=owner, key=key.key) if key else None
            if key and known and known["digest"] != key.digest:
                raise key_refused()
            if known is None:
                if row["status"] in ENDED:
                    detail = f"Turn {turn} has ended ({row['status']}); none of its calls waits for an answer any more."
                    raise Conflict(detail, code="call_over")
                await self._store(connection, owner, chat, turn, decisions, key, identity or Identity(owner), message)
        return await self._turns.get(owner, chat, turn)

    async def expire(self) -> Sequence[UUID]:
        """Gives expired asks the answer `expired`, so that their turns continue. Returns these turns."""
        answer = to_json(AskAnswer("expired"))
        return [row["id"] for row in await self._database.rows(EXPIRE_ASKS, answer=answer)]

    async def _store(
        self,
        connection: Transaction,
        owner: str,
        chat: UUID,
        turn: UUID,
        decisions: Sequence[Decision],
        key: IdempotencyKey | None,
        identity: Identity,
        message: Sequence[Block],
    ) -> None:
        rows = await connection.rows(GET_OPEN_ASKS, turn=turn)
        is_open = {row["tool_use_id"]: row["answer"] is None and not row["expired"] for row in reversed(rows)}
        decisions = [decision for decision in decisions if not decision.follows or is_open[decision.tool_use_id]]
        asks = [_checked(decision, rows, identity) for decision in decisions]
        by = None if identity.person == owner else identity.person
        await connection.rows(
            ANSWER_ASKS,
            turn=turn,
            rounds=[ask.round for ask in asks],
            tool_use_ids=[ask.tool_use_id for ask in asks],
            answers=[to_json(replace(decision.answer, by=by)) for decision in decisions],
            actor=self._database.signed_actor(identity.actor),
            principals=self._database.signed_principals(identity.principals),
        )
        for ask, decision in zip(asks, decisions, strict=True):
            if decision.remember:
                await _keep_grant(connection, chat, turn, ask, decision)
        if message:  # in the same transaction: else a model call could miss the message
            superseded = to_json(AskAnswer("superseded"))
            await connection.rows(STEER, steer=new_id(), turn=turn, blocks=to_json(message), answer=superseded)
        if message or not asks or not all(ask.is_of_job for ask in asks):  # else a trigger wakes the jobs that asked
            await connection.row(ARRIVE, turn=turn)
        if key is not None:
            kept = await connection.row(KEEP_KEY, owner=owner, key=key.key, digest=key.digest, turn=turn, steer=None)
            if kept is None:  # a simultaneous request has used the key
                raise key_refused()


async def _keep_grant(connection: Transaction, chat: UUID, turn: UUID, ask: Ask, decision: Decision) -> None:
    counted = await connection.row(COUNT_GRANTS, chat=chat)
    if counted is not None and counted["number"] >= MOST_GRANTS:
        detail = f"`remember` must be left out: {MOST_GRANTS} approvals are remembered for this chat; revoke some."
        raise RequestRefused(detail, field=f"{decision.field}.remember")
    await connection.rows(
        KEEP_GRANT,
        id=new_id(),
        chat=chat,
        tool=ask.name,
        digest=ask.tool_digest,
        when=decision.when,
        turn=turn,
        tool_use_id=ask.tool_use_id,
    )


def _checked(decision: Decision, rows: Sequence[Row], identity: Identity) -> Ask:
    """Returns the ask for the `decision`, or refuses it. `rows` begin with the newest round, because ids may repeat."""
    row = next((row for row in rows if row["tool_use_id"] == decision.tool_use_id), None)
    field = f"{decision.field}.tool_use_id"
    if row is None:
        raise RequestRefused(
            f"`tool_use_id` must be the id of a waiting call of this turn, not {decision.tool_use_id}.",
            field=field,
        )
    ask = ask_from(row)
    if ask.approvers and not set(ask.approvers) & set(identity.principals):
        approvers = ", ".join(ask.approvers)
        raise Forbidden(
            f"Only {approvers} may answer call {ask.call_id}; the request is from {identity.person}.", field=field
        )
    if ask.answer is not None and ask.answer.kind != "expired":
        detail = f"Call {ask.tool_use_id} already has an answer ({ask.answer.kind}, {row['at']} UTC)."
        raise Conflict(detail, field=field, code="call_answered")
    if ask.answer is not None or row["expired"]:
        detail = f"Call {ask.tool_use_id} waited until {ask.expires_at}; the answer came too late."
        raise Conflict(detail, field=field, code="call_over")
    if row["gone"]:
        detail = f"Call {ask.call_id} does not wait for this answer any more."
        raise Conflict(detail, field=field, code="call_over")
    if ask.kind not in decision.to:
        expected = {"client": "`result`", "approval": "`approve` or `deny`"}.get(ask.kind, "`answer`")
        raise RequestRefused(f"`type` must be {expected} for call {ask.tool_use_id}.", field=f"{decision.field}.type")
    if ask.kind == "approval" and decision.digest != ask.digest:
        detail = f"`input_digest` does not match the input of call {ask.tool_use_id}; read the call again."
        raise Conflict(detail, field=f"{decision.field}.input_digest")
    if decision.remember and ask.tool_digest is None:
        detail = f"`remember` must be left out: each call of {ask.name} needs a decision of its own."
        raise RequestRefused(detail, field=f"{decision.field}.remember")
    return ask

"""Triggers: schedules whose runs are started by signed messages, not by ticks.

The trigger of a message is found before the owner is known. So the statements for messages have access to the rows of
all owners, and each statement for a credential names the owner of the credential.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Self
from uuid import UUID

from turnstream.domain.errors import NotFound
from turnstream.extensions.schedules.store import COUNT_FAILURES, LAST_RUN, check_room
from turnstream.kit.ids import new_id
from turnstream.storage.contents import SCHEDULES
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import from_json, to_json

_COLUMNS = f"id, owner, name, chat_id, request, plan, trigger, paused, failures, created_at, {LAST_RUN}"
LIST_TRIGGERS = Statement(
    f"SELECT {_COLUMNS} FROM schedules WHERE owner = :owner AND trigger IS NOT NULL ORDER BY created_at, id",
    opens=[SCHEDULES],
)
GET_TRIGGER = Statement(
    f"SELECT {_COLUMNS} FROM schedules WHERE owner = :owner AND id = :id AND trigger IS NOT NULL", opens=[SCHEDULES]
)
LOCK_TRIGGER = Statement(
    f"SELECT {_COLUMNS} FROM schedules WHERE owner = :owner AND id = :id AND trigger IS NOT NULL FOR NO KEY UPDATE",
    opens=[SCHEDULES],
)
FIND_TRIGGER = Statement(
    "SELECT id, owner, name, chat_id, request, plan, trigger, paused FROM schedules"
    " WHERE id = :id AND trigger IS NOT NULL",
    opens=[SCHEDULES],
)
# For replicas of the previous version, the trigger is never due.
INSERT_TRIGGER = Statement(
    f"""
    WITH made AS (
        INSERT INTO schedules
            (id, owner, name, chat_id, request, plan, trigger, zone, missed, grace, next_at, paused)
        VALUES (:id, :owner, :name, :chat, CAST(:request AS json), :plan, CAST(:trigger AS json), 'UTC', 'skip', 1,
            'infinity', CASE WHEN :paused THEN 'person' END)
        RETURNING {_COLUMNS}
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'trigger.created', owner, CAST(:actor AS text), json_build_object('trigger', id, 'chat', chat_id)
        FROM made
    )
    SELECT * FROM made
    """,
    seals=[SCHEDULES],
    opens=[SCHEDULES],
)
CHANGE_TRIGGER = Statement(
    f"""
    UPDATE schedules SET name = :name, chat_id = :chat, request = CAST(:request AS json), plan = :plan,
        trigger = CAST(:trigger AS json), paused = CASE WHEN :paused THEN coalesce(paused, 'person') END,
        failures = CASE WHEN :paused THEN failures ELSE 0 END
    WHERE owner = :owner AND id = :id RETURNING {_COLUMNS}
    """,
    seals=[SCHEDULES],
    opens=[SCHEDULES],
)
SET_SECRETS = Statement(
    f"""
    WITH changed AS (
        UPDATE schedules SET trigger = CAST(:trigger AS json) WHERE owner = :owner AND id = :id RETURNING {_COLUMNS}
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'trigger.secret_made', owner, CAST(:actor AS text), json_build_object('trigger', id) FROM changed
    )
    SELECT * FROM changed
    """,
    opens=[SCHEDULES],
)
DELETE_TRIGGER = Statement(
    """
    WITH deleted AS (
        DELETE FROM schedules WHERE owner = :owner AND id = :id AND trigger IS NOT NULL RETURNING id, owner
    ), noted AS (
        INSERT INTO audit (kind, owner, actor, detail)
        SELECT 'trigger.deleted', owner, CAST(:actor AS text), json_build_object('trigger', id) FROM deleted
    )
    SELECT id FROM deleted
    """
)
# Each message uses the rate for the duration `part`. A message is accepted if its duration ends within the next minute.
TAKE_MESSAGE = Statement(
    """
    UPDATE schedules SET busy_until = greatest(busy_until, now()) + CAST(:part AS interval)
    WHERE id = :id AND greatest(busy_until, now()) + CAST(:part AS interval) <= now() + interval '1 minute'
    RETURNING id
    """
)
# A repeated message has the same turn, and adds no second run.
INSERT_MESSAGE = Statement(
    """
    INSERT INTO schedule_runs (schedule_id, tick, owner, state, turn_id, chat_id)
    SELECT schedules.id, turns.created_at, owner, 'started', turns.id, turns.chat_id FROM schedules, turns
    WHERE schedules.id = :id AND turns.id = :turn
    ON CONFLICT DO NOTHING
    """
)
INSERT_REFUSED = Statement(
    """
    INSERT INTO schedule_runs (schedule_id, tick, owner, state, error)
    SELECT id, clock_timestamp(), owner, 'failed', :error FROM schedules WHERE id = :id
    """
)

MOST_SECRETS = 5


@dataclass(frozen=True, slots=True)
class TriggerRule:
    """The column `trigger`. `secrets` are in their stored form, by id, newest last. A replaced secret is valid until
    its time in `until`, in seconds since 1970.
    """

    secrets: Mapping[str, str]
    until: Mapping[str, float]
    body: Literal["data", "message"]
    per_minute: int

    @classmethod
    def read(cls, value: str) -> Self:
        stored = from_json(value)
        return cls(stored.get("secrets") or {}, stored.get("until") or {}, stored["body"], stored["per_minute"])

    @property
    def json(self) -> str:
        return to_json({"secrets": self.secrets, "until": self.until, "body": self.body, "per_minute": self.per_minute})

    def with_secret(self, id: str, secret: str, now: float, keep_seconds: float) -> Self:
        """Returns the rule with a new secret. Earlier secrets expire after `keep_seconds`, or at their previous end if
        that is earlier.
        """
        end = now + keep_seconds
        until = {each: min(self.until.get(each, end), end) for each in self.secrets}
        kept = [each for each in self.secrets if until[each] > now][1 - MOST_SECRETS :]
        secrets = {**{each: self.secrets[each] for each in kept}, id: secret}
        return replace(self, secrets=secrets, until={each: until[each] for each in kept})

    def valid(self, now: float) -> Mapping[str, str]:
        return {id: secret for id, secret in self.secrets.items() if self.until.get(id, now + 1) > now}


@dataclass(frozen=True, slots=True)
class TriggerDraft:
    """A trigger as its owner requests it. `request` is the JSON of the message."""

    name: str
    chat: UUID | None
    request: str
    plan: str | None
    body: Literal["data", "message"]
    per_minute: int
    paused: bool

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "chat": self.chat,
            "request": self.request,
            "plan": self.plan,
            "paused": self.paused,
        }


class Triggers:
    """The triggers of owners, for the API. Each statement names the owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, owner: str) -> Sequence[Row]:
        return await self._database.rows(LIST_TRIGGERS, owner=owner)

    async def get(self, owner: str, id: UUID) -> Row:
        return _found(await self._database.row(GET_TRIGGER, owner=owner, id=id), id)

    async def create(self, owner: str, actor: str, draft: TriggerDraft, secrets: Mapping[str, str], most: int) -> Row:
        """Creates a trigger. Raises TooMany if the owner already has `most` schedules and triggers."""
        rule = TriggerRule(secrets, {}, draft.body, draft.per_minute)
        async with self._database.transaction() as transaction:
            await check_room(transaction, owner, most)
            row = await transaction.row(
                INSERT_TRIGGER, id=new_id(), owner=owner, actor=actor, trigger=rule.json, **draft.columns
            )
        assert row is not None
        return row

    async def change(self, owner: str, id: UUID, draft: TriggerDraft) -> Row:
        async with self._database.transaction() as transaction:
            before = _found(await transaction.row(LOCK_TRIGGER, owner=owner, id=id), id)
            rule = replace(TriggerRule.read(before["trigger"]), body=draft.body, per_minute=draft.per_minute)
            row = await transaction.row(CHANGE_TRIGGER, owner=owner, id=id, trigger=rule.json, **draft.columns)
        assert row is not None
        return row

    async def add_secret(
        self, owner: str, actor: str, id: UUID, secret: tuple[str, str], now: float, keep_seconds: float
    ) -> Row:
        """Adds a secret, which `secret` gives as its id and its stored form."""
        async with self._database.transaction() as transaction:
            before = _found(await transaction.row(LOCK_TRIGGER, owner=owner, id=id), id)
            rule = TriggerRule.read(before["trigger"]).with_secret(*secret, now, keep_seconds)
            row = await transaction.row(SET_SECRETS, owner=owner, id=id, actor=actor, trigger=rule.json)
        assert row is not None
        return row

    async def delete(self, owner: str, actor: str, id: UUID) -> None:
        _found(await self._database.row(DELETE_TRIGGER, owner=owner, actor=actor, id=id), id)


class TriggerMessages:
    """Handles messages for the triggers of all owners. `database` is not limited to an owner, because a message names
    no owner.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, id: UUID) -> Row | None:
        return await self._database.row(FIND_TRIGGER, id=id)

    async def take(self, id: UUID, per_minute: int) -> bool:
        """Counts a message. Returns False if the trigger has reached its limit per minute."""
        part = timedelta(minutes=1) / per_minute
        return await self._database.row(TAKE_MESSAGE, id=id, part=part) is not None

    async def started(self, id: UUID, turn: UUID) -> None:
        await self._database.rows(INSERT_MESSAGE, id=id, turn=turn)

    async def refused(self, id: UUID, error: str, most: int) -> bool:
        """Stores a refused message. Returns True if the trigger is now paused, after `most` failures in a row."""
        async with self._database.transaction() as transaction:
            await transaction.rows(INSERT_REFUSED, id=id, error=error)
            row = await transaction.row(COUNT_FAILURES, id=id, ended=False, failed=1, most=most)
        return row is not None and row["paused"] == "failures" and row["failures"] == most


def _found(row: Row | None, id: UUID) -> Row:
    if row is None:
        raise NotFound(f"There is no trigger {id}.")
    return row

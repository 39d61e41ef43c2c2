"""The calls that wait for an owner, in all of the owner's chats."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from turnstream.domain.asks import QUESTIONS, AskKind
from turnstream.storage.contents import ASKS, BLOCKS, CHATS, beginning_of
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import WAITS

EXCERPT = 300  # characters of an input

_WAITING = f"""
    FROM asks JOIN turns ON turns.id = asks.turn_id JOIN chats ON chats.id = turns.chat_id
    WHERE owner = :owner AND {WAITS}
"""
_CALL = f"""LEFT JOIN LATERAL (
        SELECT index, {beginning_of("text", ":excerpt + 1")} AS text FROM blocks
        WHERE blocks.turn_id = asks.turn_id AND blocks.round = asks.round
          AND blocks.tool_use_id = asks.tool_use_id AND blocks.type = 'tool_use'
    ) AS call ON true
    WHERE"""
COUNT_WAITING = Statement(f"SELECT count(*) AS number {_WAITING}")
LIST_WAITING = Statement(
    f"""
    SELECT asks.*, turns.chat_id, chats.title, chats.owner, call.index,
        coalesce({beginning_of("question::text", ":excerpt + 1")}, call.text) AS input
    {_WAITING.replace("WHERE", _CALL)} AND (
        CAST(:since AS timestamptz) IS NULL
        OR (asked_at, asks.turn_id, asks.round, asks.tool_use_id)
            > (:since, CAST(:turn AS uuid), CAST(:round AS int), CAST(:tool_use_id AS text))
    )
    ORDER BY asked_at, asks.turn_id, asks.round, asks.tool_use_id LIMIT :limit
    """,
    opens=[BLOCKS.named(text="input"), CHATS.named(id="chat_id"), ASKS.named(question="input")],
)


class WaitingPlace(NamedTuple):
    """The position of a call in the list: the start of its wait, and ids that order calls with the same start."""

    since: datetime
    turn: UUID
    round: int
    tool_use_id: str


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A waiting call. `input` is the beginning of its input or question, as JSON text."""

    place: WaitingPlace
    chat: UUID
    title: str | None
    name: str
    kind: AskKind
    input: str
    expires_at: datetime | None

    @property
    def tool_use_id(self) -> str:
        return self.place.tool_use_id.rpartition("#")[0] if self.kind in QUESTIONS else self.place.tool_use_id


class WaitingCalls:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, owner: str) -> int:
        row = await self._database.row(COUNT_WAITING, owner=owner)
        assert row is not None
        number: int = row["number"]
        return number

    async def page(self, owner: str, limit: int, after: WaitingPlace | None) -> Sequence[WaitingCall]:
        """Returns up to `limit` calls behind `after`, the longest wait first."""
        since, turn, round, tool_use_id = after or (None, None, None, None)
        rows = await self._database.rows(
            LIST_WAITING,
            owner=owner,
            limit=limit,
            excerpt=EXCERPT,
            since=since,
            turn=turn,
            round=round,
            tool_use_id=tool_use_id,
        )
        return [_call_from(row) for row in rows]


def _call_from(row: Row) -> WaitingCall:
    text = row["input"] or ""
    return WaitingCall(
        place=WaitingPlace(row["asked_at"], row["turn_id"], row["round"], row["tool_use_id"]),
        chat=row["chat_id"],
        title=row["title"],
        name=row["name"],
        kind=row["kind"],
        input=text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…",
        expires_at=row["expires_at"],
    )

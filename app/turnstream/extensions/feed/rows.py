"""Changes in the chats of one owner since a database time: the rows behind the owner's feed.

Rows contain the time of the statement that wrote them, and become visible at the commit, which may be minutes later: a
commit waits for its synchronous standby. A reader therefore reads again from the time before which no transaction is
still open (`OwnerChanges.time`), and skips sent changes. While a clock that was set back repeats a period,
`OwnerChanges.time` is the beginning of that period.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.turns import DELETED, OPEN, Status
from turnstream.kit.clock import CLOCK
from turnstream.storage.chats.chats import chat_from
from turnstream.storage.contents import CHATS
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import IS_OPEN_JOB, OPEN_STATUSES, WAITS

# The longest allowed time between the time in a row and the first write of its transaction, which assigns its number;
# also the largest difference between the clocks of two Postgres when one replaces the other.
OVERLAP = timedelta(seconds=10)
# The longest time between the time in a row and its commit. While a transaction is open, perhaps in another database of
# the server, each read repeats the changes since its start: a forgotten transaction must not increase them for ever.
LATEST_COMMIT = timedelta(hours=1)
_MARK_PAUSE = 5.0  # seconds

# The time, and the number of this transaction. Postgres assigns numbers in the order of first writes, over all
# databases of a server. A transaction with a number and no write waits for no disk and no standby; one that reads
# tables may wait, because reads prune pages.
GET_MARK = Statement(
    """
    SELECT now(), CAST(CAST(pg_current_xact_id() AS text) AS bigint) AS number WHERE NOT pg_is_in_recovery()
    """
)
# The time, and the oldest number of an open or prepared transaction. The statement needs no privilege, and no session
# behind a pooler.
_MOMENT = "SELECT now(), CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS oldest"
GET_MOMENT = Statement(_MOMENT)
# The first join always returns a row with the time before the read, even if no chat has changed. Only chats that are
# not `known` in this state are read in full: while a transaction is open, each read finds the same chats again.
GET_CHANGED_CHATS = Statement(
    f"""
    WITH moment AS MATERIALIZED ({_MOMENT}), found AS MATERIALIZED (
        SELECT id AS found, updated_at AS found_at FROM chats WHERE owner = :owner AND updated_at > :since
        ORDER BY updated_at, id LIMIT CAST(:most AS int)
    )
    SELECT moment.*, found, found_at, chats.* FROM moment LEFT JOIN found ON true
    LEFT JOIN unnest(CAST(:known AS uuid[]), CAST(:known_at AS timestamptz[])) AS known (chat, at)
        ON chat = found AND at = found_at
    LEFT JOIN LATERAL (SELECT * FROM chats WHERE id = found AND chat IS NULL LIMIT 1) AS chats ON true
    ORDER BY found_at, found
    """,
    opens=[CHATS],
)
# A client may choose the id of its chat, and recreate a deleted chat.
GET_DELETED_CHATS = Statement(
    """
    SELECT chat_id, deleted_at FROM deleted_chats
    WHERE owner = :owner AND deleted_at > :since AND NOT EXISTS (SELECT FROM chats WHERE id = chat_id)
    ORDER BY deleted_at, chat_id LIMIT CAST(:most AS int)
    """
)
# Most turns have no asks and no jobs; their rows show this.
_OPEN_ASKS = f"""CASE WHEN asked > 0 THEN
        (SELECT count(*) FROM asks WHERE turn_id = turns.id AND {WAITS})
    ELSE 0 END AS waiting, CASE WHEN asked > 0 THEN
        (SELECT count(*) FROM jobs WHERE turn_id = turns.id AND {IS_OPEN_JOB})
    ELSE 0 END AS jobs"""
# The turn ids come from a cursor, which a client may have forged: the owner is checked. A deleted turn has ended,
# unless it only moved to another place. The place of an assistant turn is odd.
GET_CHANGED_TURNS = Statement(
    f"""
    SELECT turns.id, chat_id, status, stop_reason, {_OPEN_ASKS} FROM turns
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE role = 'assistant' AND turns.id = ANY(CAST(:turns AS uuid[]))
    UNION
    SELECT id, chat_id, status, stop_reason, {_OPEN_ASKS} FROM turns
    WHERE role = 'assistant' AND chat_id = ANY(CAST(:chats AS uuid[])) AND created_at > :since
    UNION
    SELECT turn_id, chat_id, 'cancelled', '{DELETED}', 0, 0 FROM deleted_turns
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE place % 2 = 1 AND turn_id = ANY(CAST(:turns AS uuid[])) AND NOT EXISTS (SELECT FROM turns WHERE id = turn_id)
    ORDER BY id LIMIT CAST(:most AS int)
    """
)
# Including ended turns whose calls continue.
GET_OPEN_TURNS = Statement(
    f"""
    SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id
    WHERE owner = :owner AND status IN {OPEN_STATUSES}
    UNION
    SELECT turns.id FROM jobs JOIN turns ON turns.id = turn_id
    WHERE jobs.queue_owner = :owner AND jobs.reports AND {IS_OPEN_JOB}
    """
)


@dataclass(frozen=True, slots=True)
class TurnStatus:
    """The progress of an assistant turn. `stop_reason` is set when it has ended. `waiting` counts calls that wait for a
    person, `jobs` background calls, also after the turn's end.
    """

    id: UUID
    chat: UUID
    status: Status
    stop_reason: str | None
    waiting: int
    jobs: int = 0

    @property
    def changes(self) -> bool:
        """Whether the turn is open, or has background calls."""
        return self.status in OPEN or self.jobs > 0


@dataclass(frozen=True, slots=True)
class OwnerUpdate:
    """`found` has all new or changed chats, with the times of their rows; `chats` has the chats that were not known in
    this state; `deleted` has the deleted chats, with the time. This update or an earlier one has all changes written
    before `seen_at`.
    """

    seen_at: datetime
    found: Mapping[UUID, datetime]
    chats: Sequence[Chat]
    deleted: Sequence[tuple[UUID, datetime]]
    turns: Sequence[TurnStatus]


class OwnerChanges:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Of the last hour: times, each with the number of a transaction that started then.
        self._marks = deque[tuple[datetime, int]](maxlen=int(LATEST_COMMIT.total_seconds() / _MARK_PAUSE))
        self._next_mark = 0.0

    async def time(self) -> tuple[datetime, datetime]:
        """Returns the time of the database, and the time before which no transaction is still open."""
        await self._mark()
        moment = await self._database.row(GET_MOMENT)
        assert moment is not None
        return moment["now"], self._settled(moment)

    async def open_turns(self, owner: str) -> Sequence[UUID]:
        return [row["id"] for row in await self._database.rows(GET_OPEN_TURNS, owner=owner)]

    async def since(
        self,
        owner: str,
        seen_at: datetime,
        turns: Collection[UUID],
        known: Mapping[UUID, datetime],
        most: int | None = None,
    ) -> OwnerUpdate | None:
        """Returns the chats created, changed or deleted since the update of `seen_at` (and some before it), the new
        turns in them, and `turns`, each in its present state. None if one of these lists exceeds `most`. `known` are
        the chats of the previous update.
        """
        since = seen_at - OVERLAP
        limit = None if most is None else most + 1
        await self._mark()
        rows = await self._database.rows(
            GET_CHANGED_CHATS,
            owner=owner,
            since=since,
            most=limit,
            known=list(known.keys()),
            known_at=list(known.values()),
        )
        changed = {row["found"]: row["found_at"] for row in rows if row["found"] is not None}
        chats = [chat_from(row) for row in rows if row["id"] is not None and row["of_turn"] is None]
        deleted = await self._database.rows(GET_DELETED_CHATS, owner=owner, since=since, most=limit)
        found = await self._database.rows(
            GET_CHANGED_TURNS,
            owner=owner,
            since=since,
            turns=list(turns),
            chats=list(changed),
            most=None if limit is None else limit + len(turns),
        )
        if most is not None and max(len(changed), len(deleted), len(found) - len(turns)) > most:
            return None
        gone = [(row["chat_id"], row["deleted_at"]) for row in deleted]
        statuses = [
            TurnStatus(row["id"], row["chat_id"], row["status"], row["stop_reason"], row["waiting"], row["jobs"])
            for row in found
        ]
        # Rows written before `seen_at` were read then, even if this replica has no mark from that time.
        settled = CLOCK.in_order(max(self._settled(rows[0]), min(seen_at, rows[0]["now"])))
        return OwnerUpdate(settled, changed, chats, gone, statuses)

    async def _mark(self) -> None:
        """Adds a mark if the last mark is not recent."""
        if monotonic() < self._next_mark:
            return
        self._next_mark = monotonic() + _MARK_PAUSE
        if (mark := await self._database.row(GET_MARK)) is not None:
            self._marks.append((mark["now"], mark["number"]))

    def _settled(self, moment: Row) -> datetime:
        """Returns the time before which no transaction is open at this moment: the time of the newest mark below the
        oldest open transaction. An hour ago without such a mark.
        """
        now: datetime = moment["now"]
        oldest = now - LATEST_COMMIT
        # Backwards: the result is nearly always the last mark. A mark is after `now` if the database's clock was set
        # back, or if another read came in between.
        ended = (time for time, number in reversed(self._marks) if number < moment["oldest"])
        return CLOCK.in_order(min(max(next(ended, oldest), oldest), now))

"""Changes in the chats of one owner since a database time: the rows behind the owner's feed.

Rows contain the time of the statement that wrote them, but become visible at the commit, which may be minutes later
because it waits for a synchronous standby. A reader therefore reads again from the time before which no transaction is
still open (`OwnerChanges.time`), and skips the changes that it has sent before. While a clock that was set back repeats
a period, `OwnerChanges.time` is the beginning of that period.
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

# The longest allowed time between the time in a row and the first write of the row's transaction, at which Postgres
# assigns the transaction's number. Also the largest allowed difference between the clocks of two Postgres servers when
# one replaces the other.
OVERLAP = timedelta(seconds=10)
# The longest time between the time in a row and its commit. While a transaction is open, perhaps in another database of
# the server, each read repeats the changes since the start of that transaction. The limit keeps a forgotten transaction
# from making these reads grow for ever.
LATEST_COMMIT = timedelta(hours=1)
_MARK_PAUSE = 5.0  # seconds between two marks

# The time, and the number of this transaction. Postgres assigns numbers in the order of first writes, over all
# databases of a server. A transaction that has a number but writes nothing waits for no disk and no standby. A
# transaction that reads tables may wait, because reads prune pages.
GET_MARK = Statement(
    """
    SELECT now(), CAST(CAST(pg_current_xact_id() AS text) AS bigint) AS number WHERE NOT pg_is_in_recovery()
    """
)
# The time, and the oldest number of an open or prepared transaction. The statement needs no privilege, and works behind
# a pooler, where a client has no session of its own.
_MOMENT = "SELECT now(), CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS oldest"
GET_MOMENT = Statement(_MOMENT)
# The first join always returns a row with the time before the read, even if no chat has changed. A chat that is `known`
# in its present state is not read in full: while a transaction is open, each read finds the same chats again.
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
# A client may choose the id of its chat, so it may delete a chat and create a new chat with the same id.
GET_DELETED_CHATS = Statement(
    """
    SELECT chat_id, deleted_at FROM deleted_chats
    WHERE owner = :owner AND deleted_at > :since AND NOT EXISTS (SELECT FROM chats WHERE id = chat_id)
    ORDER BY deleted_at, chat_id LIMIT CAST(:most AS int)
    """
)
# Most turns have no asks and no jobs. Their column `asked` shows this, so the subqueries do not run.
_OPEN_ASKS = f"""CASE WHEN asked > 0 THEN
        (SELECT count(*) FROM asks WHERE turn_id = turns.id AND {WAITS})
    ELSE 0 END AS waiting, CASE WHEN asked > 0 THEN
        (SELECT count(*) FROM jobs WHERE turn_id = turns.id AND {IS_OPEN_JOB})
    ELSE 0 END AS jobs"""
# The turn ids come from a cursor, which a client may have forged, so the statement checks the owner. A turn in
# `deleted_turns` has ended, unless it only moved to another place. The place of an assistant turn is odd.
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
# The open turns, and the ended turns whose background calls continue.
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
    """The progress of an assistant turn. `stop_reason` is set when the turn has ended. `waiting` counts calls that wait
    for a person; `jobs` counts background calls, which may outlive the turn.
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
    """The changes that one read found. `found` has all new or changed chats with the times of their rows; `chats` has
    those that were not known in this state. `deleted` has the deleted chats, each with the time of its deletion. Every
    change that was written before `seen_at` is in this update or in an earlier one.
    """

    seen_at: datetime
    found: Mapping[UUID, datetime]
    chats: Sequence[Chat]
    deleted: Sequence[tuple[UUID, datetime]]
    turns: Sequence[TurnStatus]


class OwnerChanges:
    def __init__(self, database: Database) -> None:
        self._database = database
        # The times of the last hour, each with the number of a transaction that started at that time.
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
        """Returns the chats that were created, changed or deleted since the update of `seen_at` (and some from shortly
        before it), the new turns in these chats, and `turns`, each in its present state. Returns None if one of these
        lists has more than `most` items, without counting `turns`. `known` has the chats of the previous update.
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
        # Rows that were written before `seen_at` have been read already, even if this replica has no mark from that
        # time.
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
        """Returns the time before which no transaction is still open at `moment`. This is the time of the newest mark
        whose number is below the oldest open transaction's, or an hour ago if there is no such mark.
        """
        now: datetime = moment["now"]
        oldest = now - LATEST_COMMIT
        # Searches backwards, because the result is nearly always the last mark. The time of a mark is after `now` if
        # the database's clock was set back, or if another read added the mark after `moment` was read.
        ended = (time for time, number in reversed(self._marks) if number < moment["oldest"])
        return CLOCK.in_order(min(max(next(ended, oldest), oldest), now))

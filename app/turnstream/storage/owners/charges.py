"""The ledger of model calls, and the usage of owners, which is summed up from it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from turnstream.domain.charges import Charge
from turnstream.domain.plans import MEASURES, PERIODS
from turnstream.domain.rounds import BilledTokens
from turnstream.storage.database import LONG, Database, Row, Statement

COLUMNS: Final = """owner, chat_id, kind, turn_id, call, model,
            input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost"""
# Charges as parameters, in the order of the columns behind `turn_id`.
CHARGES: Final = """unnest(
            CAST(:calls AS text[]), CAST(:called_models AS text[]), CAST(:inputs AS bigint[]),
            CAST(:cache_reads AS bigint[]), CAST(:cache_writes AS bigint[]), CAST(:outputs AS bigint[]),
            CAST(:costs AS float8[])
        ) AS c"""

_COLUMNS_OF_C: Final = "c.*, coalesce((SELECT min(reserved_at) FROM released), now()), CAST(:root_turn AS uuid)"


def beginning(period: str, at: str) -> str:
    """The beginning of the period that contains `at`, as an expression of SQL. Periods are in UTC."""
    return f"date_trunc('{period}', {at}, 'UTC')"


def applied(delta: str) -> str:
    """The assignments that add the figures of `delta`, made at its time `at`, to an account. A period that is over by
    then begins again; one that began since leaves them out.
    """
    begins = {period: beginning(period, f"{delta}.at") for period in PERIODS}
    return ", ".join(
        [f"{period} = greatest({period}, {begins[period]})" for period in PERIODS]
        + [
            f"{measure}_per_{period} = CASE WHEN {begins[period]} > {period} THEN {delta}.{measure}"
            f" WHEN {begins[period]} = {period} THEN {measure}_per_{period} + {delta}.{measure}"
            f" ELSE {measure}_per_{period} END"
            for period in PERIODS
            for measure in MEASURES
        ]
    )


def charging(turn: str, source: str, held: str = "true") -> str:
    """Parts of a statement that charge `CHARGES` to the owner of `source`, a clause that gives `owner`, `chat_id`,
    `kind` and the id of the `turn`, if the condition `held` is met. The charge takes the place of its reservation, at
    the time of that one, and changes the account of an owner who has one. Repeated writes charge once. `root_turn` is
    the turn whose budgets the turn shares.
    """
    return f"""
    released AS (
        DELETE FROM reservations WHERE turn_id = {turn} AND call = ANY(CAST(:calls AS text[])) AND {held}
        RETURNING tokens, cost, reserved_at
    ), charged AS (
        INSERT INTO charges ({COLUMNS}, charged_at, root_turn)
        SELECT {source.format(columns=_COLUMNS_OF_C)}
        ON CONFLICT DO NOTHING
        RETURNING owner, cost, charged_at,
            input_tokens + cache_read_tokens + cache_write_tokens + output_tokens AS tokens
    ), accounted AS (
        UPDATE accounts SET {applied("delta")}
        FROM (
            SELECT charged.owner AS whose, min(charged_at) AS at, 0 AS requests, 0 AS writes, 0 AS calls,
                sum(tokens) - (SELECT coalesce(sum(tokens), 0) FROM released) AS tokens,
                coalesce(sum(cost), 0) - (SELECT coalesce(sum(cost), 0) FROM released) AS cost
            FROM charged GROUP BY charged.owner
        ) AS delta
        WHERE accounts.owner = whose
    )"""


CHARGE = Statement(
    "WITH "
    + charging(
        "CAST(:turn AS uuid)",
        "CAST(:owner AS text), CAST(:chat AS uuid), CAST(:kind AS text), CAST(:turn AS uuid), {columns} FROM "
        + CHARGES,
    )
    + "SELECT count(*) FROM charged"
)
# The total comes first. Columns that are not requested are null in all rows. Days are those of UTC.
_USAGE: Final = """
    WITH shown AS (
        SELECT input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost,
            CASE WHEN 'day' = ANY(CAST(:by AS text[]))
                THEN CAST(charged_at AT TIME ZONE 'UTC' AS date) END AS day,
            CASE WHEN 'model' = ANY(CAST(:by AS text[])) THEN model END AS model,
            CASE WHEN 'chat' = ANY(CAST(:by AS text[])) THEN chat_id END AS chat,
            CASE WHEN 'owner' = ANY(CAST(:by AS text[])) THEN owner END AS owner
        FROM charges WHERE charged_at >= :since AND charged_at < :until {whose}
    )
    SELECT day, model, chat, owner, count(*) AS calls, count(*) FILTER (WHERE cost IS NULL) AS unpriced,
        coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(cache_read_tokens), 0) AS cache_read_tokens,
        coalesce(sum(cache_write_tokens), 0) AS cache_write_tokens, coalesce(sum(output_tokens), 0) AS output_tokens,
        sum(cost) AS cost
    FROM shown GROUP BY GROUPING SETS ((day, model, chat, owner), ())
    ORDER BY grouping(day) DESC, day DESC, sum(cost) DESC NULLS LAST, count(*) DESC, model, chat, owner
    LIMIT :limit
"""
USAGE_OF_OWNER = Statement(_USAGE.format(whose="AND owner = :owner"), timeout=LONG)
USAGE_OF_ALL = Statement(_USAGE.format(whose=""), timeout=LONG)

UsageGroup = Literal["day", "model", "chat", "owner"]


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The model calls of a group. `cost` is None if none of them has a price; `unpriced` are those without one."""

    day: date | None
    model: str | None
    chat: UUID | None
    owner: str | None
    calls: int
    unpriced: int
    tokens: BilledTokens
    cost: float | None


class Charges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, owner: str, chat: UUID | None, turn: UUID, charge: Charge, root: UUID | None = None) -> None:
        """Charges a call that no statement about a round does; `turn` is an id of its own if it has none. May be
        repeated.
        """
        columns = columns_of_charges([charge], root)
        await self._database.rows(CHARGE, owner=owner, chat=chat, turn=turn, kind=charge.kind, **columns)

    async def usage(
        self, owner: str | None, by: Collection[UsageGroup], since: date, until: date, limit: int
    ) -> Sequence[UsageSum]:
        """Returns the sum of the charges from the day `since` to the day `until`. Then follow the sums of up to
        `limit` groups, the newest and dearest first. If `owner` is None, the sums are over all owners.
        """
        values: dict[str, Any] = {
            "by": list(by),
            "since": datetime.combine(since, time(), UTC),
            "until": datetime.combine(until + timedelta(days=1), time(), UTC),
            "limit": limit + 1,
        }
        if owner is None:
            rows = await self._database.rows(USAGE_OF_ALL, **values)
        else:
            rows = await self._database.rows(USAGE_OF_OWNER, owner=owner, **values)
        return [_sum_from(row) for row in rows]


def columns_of_charges(charges: Sequence[Charge], root: UUID | None = None) -> dict[str, Any]:
    """One list for each column of `CHARGES`, and the turn whose budgets their turn shares."""
    return {
        "calls": [charge.call for charge in charges],
        "called_models": [charge.model for charge in charges],
        "inputs": [charge.tokens.input for charge in charges],
        "cache_reads": [charge.tokens.cache_read for charge in charges],
        "cache_writes": [charge.tokens.cache_write for charge in charges],
        "outputs": [charge.tokens.output for charge in charges],
        "costs": [charge.cost for charge in charges],
        "root_turn": root,
    }


def _sum_from(row: Row) -> UsageSum:
    figures = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    return UsageSum(
        day=row["day"],
        model=row["model"],
        chat=row["chat"],
        owner=row["owner"],
        calls=row["calls"],
        unpriced=row["unpriced"],
        tokens=BilledTokens(*(int(row[name]) for name in figures)),
        cost=None if row["cost"] is None else float(row["cost"]),
    )

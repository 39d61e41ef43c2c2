"""Sums the usage of owners from the ledger of model calls. Several extensions use this module."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from turnstream.domain.rounds import BilledTokens
from turnstream.storage.database import LONG, Database, Row, Statement

# The total comes first. Columns by which the sums are not grouped are null. Days are in UTC.
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
    """The sum of a group of model calls. `cost` is None if no call has a price; `unpriced` counts the calls without a
    price.
    """

    day: date | None
    model: str | None
    chat: UUID | None
    owner: str | None
    calls: int
    unpriced: int
    tokens: BilledTokens
    cost: float | None


class UsageFigures(BaseModel):
    calls: Annotated[int, Field(description="calls of models: rounds, summaries of results, titles")]
    input_tokens: Annotated[int, Field(description="neither read from a cache nor written to one")]
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost: Annotated[float | None, Field(description="by the prices of their time; null where no call has a price")]
    unpriced: Annotated[int, Field(description="the calls whose model had no price; they are not in `cost`")]


async def usage_sums(
    database: Database, owner: str | None, by: Collection[UsageGroup], since: date, until: date, limit: int
) -> Sequence[UsageSum]:
    """Returns the sum of the charges from the day `since` to the day `until`, and then the sums of up to `limit`
    groups. The groups are sorted by day, newest first, and then by cost, dearest first. If `owner` is None, the sums
    are over all owners.
    """
    values: dict[str, Any] = {
        "by": list(by),
        "since": datetime.combine(since, time(), UTC),
        "until": datetime.combine(until + timedelta(days=1), time(), UTC),
        "limit": limit + 1,
    }
    if owner is None:
        rows = await database.rows(USAGE_OF_ALL, **values)
    else:
        rows = await database.rows(USAGE_OF_OWNER, owner=owner, **values)
    return [_sum_from(row) for row in rows]


def figures_json(used: UsageSum) -> dict[str, Any]:
    tokens = {f"{kind}_tokens": count for kind, count in asdict(used.tokens).items()}
    return {"calls": used.calls, **tokens, "cost": used.cost, "unpriced": used.unpriced}


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

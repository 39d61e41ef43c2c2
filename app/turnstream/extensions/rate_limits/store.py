"""The rows of rate limits, one for each key and model. A replica exchanges its share at most a few times a second."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from turnstream.extensions.rate_limits.allocation import (
    GrantedShare,
    ShareRequest,
    exchange,
    from_row,
    new_state,
    to_row,
)
from turnstream.extensions.rate_limits.amounts import RateLimits
from turnstream.storage.database import Database, Statement, retry_while_unavailable
from turnstream.storage.rows import from_json, to_json

# Times come from Postgres, because the clocks of replicas may differ. Postgres may read its clock before it grants the
# lock, so an update never decreases the time of a state.
LOCK_RATE = Statement(
    """
    SELECT state, extract(epoch FROM clock_timestamp())::float8 AS now FROM provider_rates WHERE key = :key FOR UPDATE
    """
)
RATE_STATES = Statement("SELECT key, state FROM provider_rates WHERE key = ANY(CAST(:keys AS text[]))")
NEW_RATE = Statement(
    """
    INSERT INTO provider_rates (key, state)
    SELECT :key, CAST(CAST(:state AS text) AS json) ON CONFLICT (key) DO NOTHING
    RETURNING key
    """
)
DATABASE_TIME = Statement("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
SET_RATE = Statement(
    """
    UPDATE provider_rates SET state = CAST(CAST(:state AS text) AS json), updated_at = now() WHERE key = :key
    RETURNING key
    """
)
UNUSED_RATES = Statement(
    """
    DELETE FROM provider_rates WHERE key IN (
        SELECT key FROM provider_rates WHERE updated_at < now() - interval '1 day' ORDER BY key LIMIT :most
        FOR UPDATE SKIP LOCKED
    )
    RETURNING key
    """
)
_STEP = 100  # rows that a sweep deletes at once


class PostgresStore:
    """Keeps all states in rows. While Postgres is unreachable, calls without a share wait, as turns do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def limits(self, keys: Sequence[str]) -> Mapping[str, RateLimits]:
        rows = await retry_while_unavailable(lambda: self._database.rows(RATE_STATES, keys=list(keys)))
        return {row["key"]: from_row(from_json(row["state"])).limits for row in rows}

    async def exchange(self, key: str, wish: ShareRequest) -> GrantedShare:
        return await retry_while_unavailable(partial(self._exchange, key, wish))

    async def _exchange(self, key: str, wish: ShareRequest) -> GrantedShare:
        async with self._database.transaction() as transaction:
            row = await transaction.row(LOCK_RATE, key=key)
            if row is None:
                clock = await transaction.row(DATABASE_TIME)
                assert clock is not None
                first = new_state(wish.limits, clock["now"])
                await transaction.row(NEW_RATE, key=key, state=to_json(to_row(first)))
                row = await transaction.row(LOCK_RATE, key=key)
            assert row is not None
            state, grant = exchange(from_row(from_json(row["state"])), wish, row["now"])
            await transaction.row(SET_RATE, key=key, state=to_json(to_row(state)))
        return grant

    async def sweep(self) -> AsyncGenerator[int, None]:
        """Deletes rows that no call has used for a day, such as rows of removed keys."""
        while gone := await self._database.rows(UNUSED_RATES, most=_STEP):
            yield len(gone)

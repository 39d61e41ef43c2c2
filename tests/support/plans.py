"""The plans that a server gets. The server prepares each statement, and for each of the first five executions Postgres
makes a plan for the values. After that Postgres keeps one generic plan for all values, unless this plan costs more.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from turnstream.storage.database import Statement

Execution = Literal["first", "sixth"]
EXECUTIONS: Final[tuple[Execution, ...]] = ("first", "sixth")
_TYPES = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'explained'"


async def plan_of(
    connection: Any, statement: Statement, values: Mapping[str, Any], execution: Execution
) -> Mapping[str, Any]:
    """Runs the prepared statement with EXPLAIN, and returns its plan. `EXPLAIN` without preparation would always plan
    for the given values.
    """
    await connection.execute("SET plan_cache_mode = auto")
    await connection.execute(f"PREPARE explained AS {statement.sql}")
    types = await connection.fetchval(_TYPES)
    literals = [
        await connection.fetchval(f"SELECT quote_nullable(CAST($1 AS {of_type})::text)", value) + f"::{of_type}"
        for of_type, value in zip(types, statement.arguments(dict(values)), strict=True)
    ]
    execute = f"EXECUTE explained ({', '.join(literals)})" if literals else "EXECUTE explained"
    if execution == "sixth":
        for _ in range(5):
            await connection.execute(f"EXPLAIN {execute}")
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}")
    await connection.execute("DEALLOCATE explained")
    plan: Mapping[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)

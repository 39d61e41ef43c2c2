"""Finds all SQL statements of the server, and describes them in a form that psql can run, with parameter types and
plans.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

from turnstream.storage.database import Statement

_PACKAGE = Path(__file__).parents[2]
# EXPLAIN must use a generic plan, because EXECUTE gets null for every parameter here.
_ANY_VALUES = "SET plan_cache_mode = force_generic_plan"
_UNPLANNED = re.compile(r"\s*LOCK\b")  # PREPARE refuses these statements
_TYPES = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1"


def statements() -> Mapping[str, Statement]:
    """Returns every statement by its module and its name there, such as `runs.queue.CLAIM_TURNS`. If a module declares
    statements in a table, the key or the number in the table is appended.
    """
    found: dict[str, Statement] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "Statement(" not in text:
            continue
        inner = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
        short = inner.removeprefix("storage.").removeprefix("extensions.")  # Postgres truncates names after 63 bytes
        for name, value in vars(import_module(f"turnstream.{inner}")).items():
            if re.search(rf"^{name}\b", text, re.MULTILINE):  # skips imported statements
                found |= dict(_in(f"{short}.{name}", value))
    # The table `alembic_version` exists only in databases of earlier versions.
    return {name: each for name, each in found.items() if " alembic_version" not in each.sql}


def named(wanted: str | None) -> Mapping[str, Statement]:
    """Returns the statements whose name is `wanted`, or has `wanted` as one of its parts. None selects every statement
    of the server.
    """
    return {name: each for name, each in statements().items() if wanted in {None, name, *name.split(".")}}


async def described(connection: Any, name: str, statement: Statement, *, plan: bool) -> str:
    """Returns the statement as a PREPARE command, followed by its plan as comments if `plan` is set. `connection` is a
    connection of the database driver.
    """
    lines = [f"-- {name}" + (f": {statement.timeout:g} seconds at most" if statement.timeout else "")]
    parameters = ", ".join(f"${number} {each}" for number, each in enumerate(statement.names, 1))
    lines += [f"--   {line}" for line in wrap(parameters, 110)]
    if _UNPLANNED.match(statement.sql):
        return "\n".join([*lines, f"{statement.sql.strip()};"])
    prepared = re.sub(r"\W", "_", name).lower()
    await connection.execute(f"PREPARE {prepared} AS {statement.sql}")
    types = await connection.fetchval(_TYPES, prepared)
    lines += [f"PREPARE {prepared}{_listed(types)} AS", f"{statement.sql.strip()};"]
    if plan:
        await connection.execute(_ANY_VALUES)
        explain = f"EXPLAIN EXECUTE {prepared}{_listed(['NULL'] * len(types))}"
        lines += [f"-- {row[0]}" for row in await connection.fetch(explain)]
    await connection.execute(f"DEALLOCATE {prepared}")
    return "\n".join(lines)


def _listed(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _in(name: str, value: Any) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _in(f"{name}.{key}", each)
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _in(f"{name}.{number}", each)

"""The ledger of model calls."""

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from turnstream.domain.charges import Charge
from turnstream.domain.plans import MEASURES, PERIODS, SPENT
from turnstream.storage.database import Database, Statement

COLUMNS: Final = """owner, chat_id, kind, turn_id, call, model,
            input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost"""
# The charges as parameters, in the order of the columns after `turn_id`.
CHARGES: Final = """unnest(
            CAST(:calls AS text[]), CAST(:called_models AS text[]), CAST(:inputs AS bigint[]),
            CAST(:cache_reads AS bigint[]), CAST(:cache_writes AS bigint[]), CAST(:outputs AS bigint[]),
            CAST(:costs AS float8[])
        ) AS c"""

# SQL for the figures that a charge adds to the measures which are known only after a call.
FIGURES: Final = {"tokens": "input_tokens + cache_read_tokens + cache_write_tokens + output_tokens", "cost": "cost"}
_COLUMNS_OF_C: Final = "c.*, coalesce((SELECT min(reserved_at) FROM released), now()), CAST(:root_turn AS uuid)"


def beginning(period: str, at: str) -> str:
    """Returns an SQL expression for the start of the period that contains the time `at`. Periods are in UTC."""
    return f"date_trunc('{period}', {at}, 'UTC')"


def applied(delta: str) -> str:
    """Returns the assignments that add the figures of `delta`, at its time `at`, to an account. If a period of the
    account has ended before `at`, its figures start again. If the period began after `at`, its figures do not change.
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


def spent(figure: Callable[[str], str]) -> str:
    """Returns the columns of a `delta`: the `figure` of each measure that model calls spend, 0 for other measures."""
    return ", ".join(f"{figure(measure) if measure in SPENT else 0} AS {measure}" for measure in MEASURES)


def charging(turn: str, source: str, held: str = "true") -> str:
    """Returns parts of a statement that charge `CHARGES` to the owner of `source`. `source` is a clause with `owner`,
    `chat_id`, `kind`, the id of the `turn` and the columns of the charges. Each charge gets the time of its
    reservation, and changes the owner's account, if there is one. The reservation is deleted if the condition `held` is
    met. Repeated writes charge once. `root_turn` is the root of the family that shares budgets.
    """
    return f"""
    released AS (
        DELETE FROM reservations WHERE turn_id = {turn} AND call = ANY(CAST(:calls AS text[])) AND {held}
        RETURNING {", ".join(SPENT)}, reserved_at
    ), charged AS (
        INSERT INTO charges ({COLUMNS}, charged_at, root_turn)
        SELECT {source.format(columns=_COLUMNS_OF_C)}
        ON CONFLICT DO NOTHING
        RETURNING owner, charged_at, {", ".join(f"{FIGURES[measure]} AS {measure}" for measure in SPENT)}
    ), accounted AS (
        UPDATE accounts SET {applied("delta")}
        FROM (
            SELECT charged.owner AS whose, min(charged_at) AS at,
                {spent(lambda it: f"coalesce(sum({it}), 0) - (SELECT coalesce(sum({it}), 0) FROM released)")}
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


class Charges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, owner: str, chat: UUID | None, turn: UUID, charge: Charge, root: UUID | None = None) -> None:
        """Charges a call outside of rounds; repeated writes charge once. `turn` is a new id if the call has no turn."""
        columns = columns_of_charges([charge], root)
        await self._database.rows(CHARGE, owner=owner, chat=chat, turn=turn, kind=charge.kind, **columns)


def columns_of_charges(charges: Sequence[Charge], root: UUID | None = None) -> dict[str, Any]:
    """Returns a list for each column of `CHARGES`, and the root of the family that shares budgets."""
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

"""Accounts: the use of rates by owners who have a plan, counted exactly over all replicas.

Each operation is one statement that changes the account's row. If two replicas change the row, the second waits, and
then sees the use of the first. Before a model call, the server reserves the call's maximum use. The statement that
seals or voids the round replaces the reservation by the charge (app/turnstream/storage/owners/charges.py).

A call that no plan limits also has a reservation, from its first tick until its charge. This reservation counts for no
rate. If the process dies before the reply begins, the reservation determines the charge of the request.

A turn that shares a budget with its family reserves each request before the call, with `root_turn`, so that parallel
turns of the family see each other's requests.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from turnstream.domain.charges import Charge, root_of
from turnstream.domain.limits import FamilyUse
from turnstream.domain.plans import COUNTED, MEASURES, PERIODS, RATES, SPENT, Plan, Refusal, reached_rate
from turnstream.domain.turns import Turn
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.owners.charges import COLUMNS, FIGURES, applied, beginning, spent
from turnstream.storage.retention import NO_ID


def _now(rate: str) -> str:
    """Returns SQL for the present figure of a rate, which is zero after the end of its period."""
    period = rate.rpartition("_")[2]
    return f"CASE WHEN {period} >= {beginning(period, 'now()')} THEN {rate} ELSE 0 END"


def _within(rate: str) -> str:
    """Returns the SQL condition that a rate has room for the use in `delta`, as in `reached_rate`."""
    measure = rate.partition("_per_")[0]
    figure, limit = _now(rate), f"CAST(:most_{rate} AS numeric)"
    room = f"{figure} + delta.{measure} <= {limit}" if measure in COUNTED else f"{figure} < {limit}"
    return f"({limit} IS NULL OR {room})"


_TAKE: Final = f"""
    UPDATE accounts SET running_turns = CASE
            WHEN CAST(:sets_turns AS boolean) THEN CAST(:running_turns AS int) ELSE running_turns
        END, {applied("delta")}
    FROM (
        SELECT now() AS at, {", ".join(f"CAST(:{measure} AS numeric) AS {measure}" for measure in MEASURES)}
    ) AS delta
    WHERE owner = :owner AND {" AND ".join(map(_within, RATES))}
    RETURNING owner
"""
TAKE = Statement(_TAKE)
RESERVE = Statement(
    f"""
    WITH taken AS ({_TAKE})
    INSERT INTO reservations
        (owner, turn_id, attempt, chat_id, kind, call, model, request_tokens, request_cost, {", ".join(SPENT)})
    SELECT owner, CAST(:turn AS uuid), CAST(:attempt AS int), CAST(:chat AS uuid), CAST(:kind AS text),
        CAST(:call AS text), CAST(:model AS text), CAST(:request_tokens AS bigint), CAST(:request_cost AS float8),
        {", ".join(f"CAST(:{measure} AS numeric)" for measure in SPENT)}
    FROM taken
    RETURNING id
    """
)
# The fence takes no lock: if the round is sealed first, its call is charged already, and is not charged again.
RESERVE_REQUESTS = Statement(
    """
    INSERT INTO reservations
        (owner, turn_id, attempt, tokens, cost, chat_id, kind, call, model, request_tokens, request_cost, root_turn)
    SELECT owner, turns.id, turns.attempt, 0, 0, chat_id, 'round', r.call, r.model, r.tokens, r.cost, r.root
    FROM unnest(
        CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:calls AS text[]), CAST(:models AS text[]),
        CAST(:tokens AS bigint[]), CAST(:costs AS float8[]), CAST(:roots AS uuid[])
    ) AS r (turn, attempt, call, model, tokens, cost, root)
    JOIN turns ON turns.id = r.turn AND turns.attempt = r.attempt AND status = 'running'
    JOIN chats ON chats.id = chat_id
    """
)
# The use of a family: its charges, and the reserved requests of its running calls.
_FAMILY_USE = f"""
    SELECT coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost), 0)::float8 AS cost
    FROM (
        SELECT {FIGURES["tokens"]} AS tokens, cost FROM charges WHERE turn_id = CAST(:root AS uuid) AND kind = 'round'
        UNION ALL
        SELECT {FIGURES["tokens"]}, cost FROM charges WHERE root_turn = CAST(:root AS uuid) AND kind = 'round'
        UNION ALL
        SELECT request_tokens, request_cost
        FROM reservations WHERE owner = :owner AND root_turn = CAST(:root AS uuid)
            AND (turn_id, call) IS DISTINCT FROM (CAST(:turn AS uuid), CAST(:call AS text))
    ) AS uses
"""
GET_FAMILY_USE = Statement(_FAMILY_USE)
# A separate, earlier statement takes the lock, so that the next statement sees the use of earlier holders. It is not a
# row lock, because a deletion of the family locks its rows in another order.
LOCK_FAMILY = Statement("SELECT pg_advisory_xact_lock(hashtextextended(CAST(:root AS text), 0))")
TAKE_OF_FAMILY = Statement(
    f"""
    WITH used AS ({_FAMILY_USE}), taken AS (
        INSERT INTO reservations
            (owner, turn_id, attempt, tokens, cost, chat_id, kind, call, model, request_tokens, request_cost, root_turn)
        SELECT CAST(:owner AS text), CAST(:turn AS uuid), CAST(:attempt AS int), 0, 0, CAST(:chat AS uuid), 'round',
            CAST(:call AS text), CAST(:model AS text), CAST(:request_tokens AS bigint),
            CAST(:request_cost AS float8), CAST(:root AS uuid)
        FROM used
        WHERE (CAST(:budget_tokens AS bigint) IS NULL OR tokens < CAST(:budget_tokens AS bigint))
          AND (CAST(:budget_cost AS float8) IS NULL OR cost < CAST(:budget_cost AS float8))
          AND NOT EXISTS (SELECT FROM reservations WHERE turn_id = :turn AND call = :call AND root_turn = :root)
    )
    SELECT tokens, cost FROM used
    """
)
# A new account begins with the sums that the ledger has for the present periods.
OPEN_ACCOUNT = Statement(
    f"""
    INSERT INTO accounts (owner, {", ".join(PERIODS)}, {
        ", ".join(f"{measure}_per_{period}" for period in PERIODS for measure in SPENT)
    })
    SELECT CAST(:owner AS text), {", ".join(beginning(period, "now()") for period in PERIODS)}, {
        ", ".join(
            f"coalesce(sum({FIGURES[measure]}) FILTER (WHERE charged_at >= {beginning(period, 'now()')}), 0)"
            for period in PERIODS
            for measure in SPENT
        )
    }
    FROM charges WHERE owner = :owner AND charged_at >= {beginning("month", "now()")}
    ON CONFLICT DO NOTHING
    """
)
GET_ACCOUNT = Statement(
    f"""
    SELECT {", ".join(f"{_now(rate)} AS {rate}" for rate in RATES)}, held.*, now() AS at
    FROM accounts, LATERAL (
        SELECT {", ".join(f"coalesce(sum({measure}), 0) AS held_{measure}" for measure in SPENT)}
        FROM reservations WHERE reservations.owner = accounts.owner
    ) AS held
    WHERE accounts.owner = :owner
    """
)
_RELEASE: Final = f"""
    WITH released AS (
        DELETE FROM reservations WHERE id = :id RETURNING *
    )
    UPDATE accounts SET {applied("delta")}
    FROM (
        SELECT owner AS whose, reserved_at AS at, {spent(lambda it: f"- {it}")} FROM released
    ) AS delta
    WHERE owner = whose
"""
RELEASE = Statement(_RELEASE)
# Charges the request of a call whose process died. If its round was charged already, under the same name of the call,
# that charge counts instead.
CHARGE_REQUEST = Statement(
    f"""
    WITH released AS (
        DELETE FROM reservations WHERE id = :id RETURNING *
    ), charged AS (
        INSERT INTO charges ({COLUMNS}, charged_at, root_turn)
        SELECT owner, chat_id, kind, turn_id, call, model, request_tokens, 0, 0, 0, request_cost, reserved_at, root_turn
        FROM released WHERE model IS NOT NULL
        ON CONFLICT DO NOTHING
        RETURNING {", ".join(f"{FIGURES[measure]} AS {measure}" for measure in SPENT)}
    )
    UPDATE accounts SET {applied("delta")}
    FROM (
        SELECT owner AS whose, reserved_at AS at, {spent(lambda it: f"coalesce(charged.{it}, 0) - released.{it}")}
        FROM released LEFT JOIN charged ON true
    ) AS delta
    WHERE owner = whose
    """
)
GET_RESERVATIONS = Statement("SELECT id, attempt FROM reservations WHERE turn_id = :turn AND attempt <= :attempt")
GET_RESERVATIONS_OF_CALL = Statement("SELECT id FROM reservations WHERE turn_id = :turn AND call = :call")
# Reads reservations by id. An orphan is a reservation that no run will settle, because the run has ended or was taken
# over. Titles may be charged for two minutes after a run. The sweep continues after the last id, orphan or not.
GET_ORPHANS = Statement(
    """
    SELECT id, reserved_at < now() - interval '2 minutes' AND NOT EXISTS (
        SELECT FROM turns WHERE turns.id = turn_id AND status = 'running' AND turns.attempt = reservations.attempt
    ) AS orphan
    FROM reservations WHERE id > :after ORDER BY id LIMIT :most
    """,
    timeout=LONG,
)

_TRIES = 5
_STEP = 100  # reservations that a sweep reads in one statement


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The turn, chat and attempt of a model call. `turn` is a new id if the call has no turn."""

    turn: UUID
    chat: UUID | None = None
    attempt: int = 0

    @classmethod
    def of(cls, turn: Turn) -> "CallPlace":
        return cls(turn.id, turn.chat_id, turn.attempt)


class Accounts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def admit(self, owner: str, plan: Plan, writes: int = 0) -> Refusal | None:
        """Counts a request and its `writes`, if the plan has room for both and for the model calls that follow."""
        adding = {"requests": 1, **dict.fromkeys(SPENT, 0), **({"writes": writes} if writes else {})}
        turns = {"sets_turns": True, "running_turns": plan.running_turns}
        return await self._take(TAKE, owner, plan, adding, **turns)

    async def count_writes(self, owner: str, plan: Plan, count: int) -> Refusal | None:
        """Counts all writes, or none if the plan has no room for all."""
        return await self._take(TAKE, owner, plan, {"writes": count}, sets_turns=False, running_turns=None)

    async def count_calls(self, owner: str, plan: Plan, count: int) -> Refusal | None:
        """Counts all calls of tools, or none if the plan has no room for all."""
        return await self._take(TAKE, owner, plan, {"calls": count}, sets_turns=False, running_turns=None)

    async def reserve(
        self, owner: str, plan: Plan, place: CallPlace, request: Charge, tokens: int, cost: float
    ) -> Refusal | None:
        """Reserves the maximum use of a model call. `request` is its charge if it gets no reply. A repeated write
        reserves once more; all reservations of the call are removed when it is settled.
        """
        adding = {"tokens": tokens, "cost": cost}
        return await self._take(
            RESERVE,
            owner,
            plan,
            adding,
            turn=place.turn,
            attempt=place.attempt,
            chat=place.chat,
            kind=request.kind,
            call=request.call,
            model=request.model,
            request_tokens=request.tokens.input,
            request_cost=request.cost,
            sets_turns=False,
            running_turns=None,
        )

    async def reserve_requests(self, requests: Sequence[tuple[Turn, Charge]]) -> None:
        """Reserves, for each model call, its charge without a reply. Omits turns whose claim is lost."""
        await self._database.rows(
            RESERVE_REQUESTS,
            turns=[turn.id for turn, _ in requests],
            attempts=[turn.attempt for turn, _ in requests],
            calls=[request.call for _, request in requests],
            models=[request.model for _, request in requests],
            tokens=[request.tokens.input for _, request in requests],
            costs=[request.cost for _, request in requests],
            roots=[root_of(turn) for turn, _ in requests],
        )

    async def family_use(self, owner: str, root: UUID) -> FamilyUse:
        """Returns the use of the turn `root` and of the turns of its family."""
        row = await self._database.row(GET_FAMILY_USE, owner=owner, root=root, turn=None, call=None)
        assert row is not None
        return FamilyUse(row["tokens"], row["cost"])

    async def take_of_family(self, owner: str, root: UUID, turn: Turn, request: Charge) -> FamilyUse:
        """Reserves the request of a model call of the turn, if the family's budgets are not spent. Returns the family's
        use. A repeated write reserves once.
        """
        assert turn.request is not None
        limits = turn.request.limits
        async with self._database.transaction() as connection:
            await connection.row(LOCK_FAMILY, root=str(root))
            row = await connection.row(
                TAKE_OF_FAMILY,
                owner=owner,
                root=root,
                turn=turn.id,
                attempt=turn.attempt,
                chat=turn.chat_id,
                call=request.call,
                model=request.model,
                request_tokens=request.tokens.input,
                request_cost=request.cost,
                budget_tokens=limits.budget_tokens,
                budget_cost=limits.budget_cost,
            )
        assert row is not None
        return FamilyUse(row["tokens"], row["cost"])

    async def release(self, turn: UUID, attempt: int, since: int) -> None:
        """Releases the unused reservations of the attempts from `since` up to `attempt`. Charges the requests of
        earlier attempts, whose processes have died.
        """
        for row in await self._database.rows(GET_RESERVATIONS, turn=turn, attempt=attempt):
            await self._database.rows(RELEASE if row["attempt"] >= since else CHARGE_REQUEST, id=row["id"])

    async def release_call(self, turn: UUID, call: str) -> None:
        """Releases the reservation of a call that has not begun."""
        for row in await self._database.rows(GET_RESERVATIONS_OF_CALL, turn=turn, call=call):
            await self._database.rows(RELEASE, id=row["id"])

    async def sweep(self) -> AsyncGenerator[int, None]:
        """Charges the requests of calls that no run will settle, and releases the rest of the reserved use."""
        after = NO_ID
        while rows := await self._database.rows(GET_ORPHANS, after=after, most=_STEP):
            after, orphans = rows[-1]["id"], [row["id"] for row in rows if row["orphan"]]
            for id in orphans:  # one by one: statements that change two accounts could deadlock
                await self._database.rows(CHARGE_REQUEST, id=id)
            yield len(orphans)

    async def _take(
        self, statement: Statement, owner: str, plan: Plan, adding: Mapping[str, float], **values: Any
    ) -> Refusal | None:
        limits = {rate: limit for rate, limit in plan.rates.items() if _measure(rate) in adding}
        most = {f"most_{rate}": Decimal(str(limits[rate])) if rate in limits else None for rate in RATES}
        amounts = {measure: Decimal(str(adding.get(measure, 0))) for measure in MEASURES}
        for _ in range(_TRIES):
            if await self._database.row(statement, owner=owner, **most, **amounts, **values) is not None:
                return None
            row = await self._database.row(GET_ACCOUNT, owner=owner)
            if row is None:
                await self._database.rows(OPEN_ACCOUNT, owner=owner)
            elif (refusal := _refusal(plan, adding, row)) is not None:
                return refusal
        raise AssertionError("an account that has room takes nothing")


def _measure(rate: str) -> str:
    return rate.partition("_per_")[0]


def _refusal(plan: Plan, adding: Mapping[str, float], row: Row) -> Refusal | None:
    """Returns the refusal by an exhausted rate; None if the account has room again."""
    used = {rate: float(row[rate]) for rate in RATES}
    reached = reached_rate(plan, used, adding)
    if reached is None:
        return None
    held = dict(row).get(f"held_{_measure(reached.name)}", 0)
    return Refusal(reached, row["at"], passing=reached.used - float(held) < reached.limit)

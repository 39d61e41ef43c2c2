"""Computes the limits that a turn has reached, from its rows, with pure functions.

The executor checks budgets (tokens, cost, seconds) before each model or tool call. A running step always completes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from uuid import UUID

from turnstream.domain.asks import Ask
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.rounds import billed_tokens, exact_sum
from turnstream.domain.turns import Turn

BUDGET = "budget"  # the failure of a turn whose budget is spent


@dataclass(frozen=True, slots=True)
class ReachedLimit:
    """A reached limit: its name in the API, its value, and the `used` amount."""

    name: str
    limit: float
    used: float


@dataclass(frozen=True, slots=True)
class FamilyUse:
    """The tokens and the cost that all turns of a family have used, including their running model calls."""

    tokens: int
    cost: float


def family_of(turn: Turn) -> UUID | None:
    """Returns the root turn of the family with which the turn shares a budget of tokens or cost; otherwise None."""
    assert turn.request is not None
    limits = turn.request.limits
    if limits.budget_tokens is None and limits.budget_cost is None:
        return None
    if turn.request.root_turn is not None:
        return turn.request.root_turn
    return turn.id if any(job.kind == "child" for job in turn.jobs) else None


def rounds_with_calls(blocks: Sequence[Block]) -> list[int]:
    """Returns the numbers of the rounds that have tool calls."""
    return sorted({block.round for block in blocks if block.is_call})


def round_limit(turn: Turn, last: int | None = None) -> int:
    """Returns the maximum number of tool rounds of the turn. The maximum begins at `max_rounds`. It grows by one, up to
    `hard_max_rounds`, whenever the last allowed round makes progress. Rounds after `last` are ignored.
    """
    assert turn.request is not None
    limits = turn.request.limits
    limit = limits.max_rounds
    if limit >= (limits.hard_max_rounds or 0):
        return limit
    numbers = [number for number in rounds_with_calls(turn.blocks) if last is None or number <= last]
    while limit < (limits.hard_max_rounds or 0) and 0 < limit <= len(numbers):
        if not makes_progress(turn.blocks, numbers[limit - 1]):
            break
        limit += 1
    return limit


def makes_progress(blocks: Sequence[Block], number: int) -> bool:
    """Returns whether the round has a new result: no error, and unlike the results of earlier identical calls."""
    calls = {block.key: (block.name, block.text) for block in blocks if block.is_call}
    results = [block for block in blocks if block.type == TOOL_RESULT and not block.is_error]
    known = {(calls.get(block.key), block.text, block.data) for block in results if block.round < number}
    return any(
        (calls.get(block.key), block.text, block.data) not in known for block in results if block.round == number
    )


def counted_calls(turn: Turn) -> tuple[Block, ...]:
    """Returns all tool calls except the calls of a structured turn's output tools."""
    assert turn.request is not None
    own = {spec.name for spec in turn.request.tools if spec.role is not None}
    return tuple(block for block in turn.blocks if block.is_call and block.name not in own)


def calls_over_limit(turn: Turn) -> tuple[Block, ...]:
    assert turn.request is not None
    most = turn.request.limits.max_calls
    return () if most is None else counted_calls(turn)[most:]


def calls_are_spent(turn: Turn, last: int | None = None) -> bool:
    """Returns True if the calls use up `max_calls`. Calls after round `last` do not count."""
    assert turn.request is not None
    most = turn.request.limits.max_calls
    return most is not None and sum(last is None or call.round <= last for call in counted_calls(turn)) >= most


def spent_budget(turn: Turn, now: datetime | None, family: FamilyUse | None = None) -> ReachedLimit | None:
    """Returns the first spent budget, or None if no budget is spent. Without `now`, the budget of seconds is not
    checked. `family` is the use of the turn's whole family, including this turn.
    """
    assert turn.request is not None
    limits = turn.request.limits
    if limits.budget_tokens is not None:
        tokens = family.tokens if family else sum(billed_tokens(round.spent).total for round in turn.rounds)
        if tokens >= limits.budget_tokens:
            return ReachedLimit("budget_tokens", limits.budget_tokens, tokens)
    if limits.budget_cost is not None:
        cost = family.cost if family else _cost(turn)
        if cost >= limits.budget_cost:
            return ReachedLimit("budget_cost", limits.budget_cost, cost)
    if limits.budget_seconds is not None and now is not None:
        seconds = seconds_used(turn, now)
        if seconds >= limits.budget_seconds:
            return ReachedLimit("budget_seconds", limits.budget_seconds, round(seconds, 3))
    return None


def budget_sentence(spent: ReachedLimit, family: FamilyUse | None = None) -> str:
    what = {"budget_tokens": "tokens", "budget_cost": "in cost", "budget_seconds": "seconds"}[spent.name]
    of_family = family is not None and spent.name != "budget_seconds"
    whose = "The turn and its family have" if of_family else "The turn has"
    return f"{whose} used {figure(spent.used)} {what}, and its `limits.{spent.name}` is {figure(spent.limit)}."


def figure(amount: float) -> str:
    """Formats an amount. A whole number has no decimals."""
    return f"{int(amount):,}" if amount == int(amount) else f"{amount:,}"


def _cost(turn: Turn) -> float:
    """Returns the cost of all rounds. A round whose model has no prices costs nothing here."""
    assert turn.request is not None
    prices = turn.request.limits.prices
    models = [(prices.get(round.model or turn.request.model), round) for round in turn.rounds]
    return exact_sum(price.cost_of(round.spent) for price, round in models if price is not None)


def seconds_used(turn: Turn, now: datetime) -> float:
    """Returns the seconds since the first claim of the turn, without the time in which it waited for a person."""
    if turn.started_at is None:
        return 0.0
    # If a job is over, the turn no longer waits for an answer to a question of the job.
    asked = [ask for ask in turn.asks if ask.answer is not None or not ask.is_of_job or turn.waits_for(ask)]
    waits = [_wait(list(asks), now) for _, asks in groupby(asked, key=lambda ask: ask.round)]
    return (now - turn.started_at).total_seconds() - sum(waits)


def _wait(asks: Sequence[Ask], now: datetime) -> float:
    """Returns the seconds from the first ask of one round to its last answer, or to `now` if an answer is missing."""
    asked = [ask.asked_at for ask in asks if ask.asked_at is not None]
    answered = [ask.answered_at or now for ask in asks if ask.asked_at is not None]
    return (max(answered) - min(asked)).total_seconds() if asked else 0.0


def reached_limits(turn: Turn) -> tuple[ReachedLimit, ...]:
    """Returns the limits of rounds, calls and budgets that the turn has reached."""
    if turn.request is None:
        return ()
    reached: list[ReachedLimit] = []
    limits, rounds = turn.request.limits, len(rounds_with_calls(turn.blocks))
    calls, most = len(counted_calls(turn)) if rounds else 0, round_limit(turn)
    # A structured turn has other limits (`max_attempts`, `max_iterations`), and its error names the reached limit.
    if turn.request.output is None and rounds >= max(1, most):
        name = "hard_max_rounds" if most > limits.max_rounds else "max_rounds"
        reached.append(ReachedLimit(name, most, rounds))
    if limits.max_calls is not None and calls_are_spent(turn) and calls:
        reached.append(ReachedLimit("max_calls", limits.max_calls, calls))
    if turn.error is not None and turn.error.type == BUDGET and turn.error.details is not None:
        reached.append(ReachedLimit(**turn.error.details))
    return tuple(reached)

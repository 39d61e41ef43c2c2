"""A run's use of its owner's plan: reserved before each model call, and counted before tools run."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from turnstream.domain.charges import Charge
from turnstream.domain.compaction import estimate_size
from turnstream.domain.limits import FamilyUse, ReachedLimit, budget_sentence, family_of, spent_budget
from turnstream.domain.plans import SPENT, Plan
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Turn
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.accounts import Accounts, CallPlace

# Most tokens of a reply that is limited neither by its parameters nor by its model.
_LONGEST_REPLY = 32_000


class BudgetSpent(Exception):
    """The owner's plan, or a budget of the turn's family, has no room for the next model call; the turn ends."""

    def __init__(self, reached: ReachedLimit, sentence: str) -> None:
        super().__init__(sentence)
        self.reached = reached


class Spending:
    """Reserves and counts a run's use of its owner's plan. `reached` is the limit that prevents the next action."""

    def __init__(self, accounts: Accounts, owner: str, plan: Plan, attempt: int) -> None:
        """`attempt` is the first attempt of the run."""
        self._accounts = accounts
        self._owner = owner
        self._attempt = attempt
        self.plan = plan
        self._held: tuple[str, str] | None = None  # the reserved call and its model
        self._reserved = False
        self.reached: ReachedLimit | None = None

    @property
    def limits_models(self) -> bool:
        return self.plan.has(*SPENT)

    @property
    def limits_calls(self) -> bool:
        return self.plan.has("calls")

    async def reserve(self, turn: Turn, request: Charge, tokens: int, cost: float) -> bool:
        """Reserves tokens and cost of a call, unless a failed try has done so. Returns False if there is no room."""
        if self.reached is None and self._held != (request.call, request.model):
            if self._held is not None or not self._reserved:
                await self.close(turn)  # unused reservations of this run or an earlier attempt
            reserved = (self._owner, self.plan, CallPlace.of(turn), request, tokens, cost)
            refusal = await retry_while_unavailable(lambda: self._accounts.reserve(*reserved))
            self._reserved, self._held = True, (request.call, request.model)
            self.reached = refusal.reached if refusal else None
        return self.reached is None

    async def family_use(self, turn: Turn) -> FamilyUse | None:
        """Returns the use of the budget that the family shares; None if the family shares none."""
        if (root := family_of(turn)) is None:
            return None
        return await retry_while_unavailable(lambda: self._accounts.family_use(self._owner, root))

    async def take_of_family(self, root: UUID, turn: Turn, request: Charge) -> None:
        """Reserves the request of a model call from the budget of `root`'s family. Raises BudgetSpent."""
        take = (self._owner, root, turn, request)
        used = await retry_while_unavailable(lambda: self._accounts.take_of_family(*take))
        self._reserved = True
        if (spent := spent_budget(turn, None, used)) is not None:
            raise BudgetSpent(spent, budget_sentence(spent, used))

    async def count_calls(self, count: int) -> bool:
        """Counts `count` tool calls, all or none. Returns False if the plan has no room for all of them."""
        if self.reached is None:
            refusal = await retry_while_unavailable(lambda: self._accounts.count_calls(self._owner, self.plan, count))
            self.reached = refusal.reached if refusal else None
        return self.reached is None

    def holds_for(self, turn: Turn) -> bool:
        """Whether this run or an earlier attempt may have open reservations."""
        return self._reserved or (turn.has_run_before and (self.limits_models or family_of(turn) is not None))

    async def close(self, turn: Turn) -> None:
        """Returns unused reservations to the plan. Charges the requests of earlier runs that were killed."""
        if self.holds_for(turn):
            await retry_while_unavailable(lambda: self._accounts.release(turn.id, turn.attempt, self._attempt))
        self._held = None

    async def forget(self, turn: Turn, call: str) -> None:
        """Returns the reservation of a call that failed without a reply, if no plan limits the call."""
        await retry_while_unavailable(lambda: self._accounts.release_call(turn.id, call))


def most_tokens(path: Sequence[Turn], params: Mapping[str, Any], longest: int | None) -> tuple[int, int]:
    """Estimates the most tokens of a request for the end of `path`, and the most tokens of its reply. The parameters
    limit the reply, or else `longest`, the limit of the model.
    """
    size = estimate_size(path)
    asked = params.get("max_tokens")
    thinking = params.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    reply = asked if isinstance(asked, int) else longest or _LONGEST_REPLY
    return size.tokens + size.guessed, reply + (budget if isinstance(budget, int) else 0)


def most_cost(prices: Prices | None, request: int, reply: int) -> float:
    """Returns the maximum cost of a request and a reply with these numbers of tokens; 0 without prices."""
    if prices is None:
        return 0.0
    dearest = "cache_creation_input_tokens" if (prices.cache_write or 0) > prices.input else "input_tokens"
    return prices.cost_of({dearest: request, "output_tokens": reply})

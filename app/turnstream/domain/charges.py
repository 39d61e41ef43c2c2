"""Charges: the tokens and the cost of model calls, as the ledger stores them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from turnstream.domain.assembly import WRITTEN_HERE
from turnstream.domain.rounds import BilledTokens, Prices, Round, billed_tokens
from turnstream.domain.turns import Turn

ChargeKind = Literal["round", "summary", "title", "embedding", "guard"]


@dataclass(frozen=True, slots=True)
class Charge:
    """One model call of a turn, or a side call that summarises a result, titles the chat, or checks a text for a guard.
    Embeddings have no turn. `call` names the call within the turn. `cost` is None if the prices are unknown.
    """

    kind: ChargeKind
    call: str
    model: str
    tokens: BilledTokens
    cost: float | None


def charges_of(rounds: Iterable[Round], turn: Turn) -> Sequence[Charge]:
    """Returns the charges for `rounds` of the turn. A round that the server wrote itself has no charge."""
    assert turn.request is not None
    return [
        Charge("round", call_of(round), round.model or turn.request.model, billed_tokens(round.spent), round.cost)
        for round in rounds
        if round.stop_reason not in WRITTEN_HERE
    ]


def root_of(turn: Turn) -> UUID | None:
    """Returns the root turn of the family, if the turn works for another turn; otherwise None."""
    return None if turn.request is None else turn.request.root_turn


def call_of(round: Round) -> str:
    return f"{round.number}.{round.attempt}"


def charge_of_request(kind: ChargeKind, call: str, model: str, tokens: int, prices: Prices | None) -> Charge:
    """Returns the charge for a model call that had no reply. `tokens` is the estimated size of its request."""
    cost = None if prices is None else prices.cost_of({"input_tokens": tokens})
    return Charge(kind, call, model, BilledTokens(tokens, 0, 0, 0), cost)

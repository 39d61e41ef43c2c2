"""Charges: what model calls have used and cost, as the ledger keeps it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.assembly import ASSEMBLED
from app.domain.rounds import BilledTokens, Round, billed_tokens
from app.domain.turns import Turn


@dataclass(frozen=True, slots=True)
class Charge:
    """One model call of a turn, or beside it: the summary of a result, the title of its chat. `call` is its name within
    the turn. `cost` is None where the prices are not known.
    """

    kind: Literal["round", "summary", "title"]
    call: str
    model: str
    tokens: BilledTokens
    cost: float | None


def charges_of(rounds: Iterable[Round], turn: Turn) -> Sequence[Charge]:
    """The charges of rounds of the turn. An assembled answer was no model call."""
    assert turn.request is not None
    return [
        Charge("round", call_of(round), round.model or turn.request.model, billed_tokens(round.spent), round.cost)
        for round in rounds
        if round.stop_reason != ASSEMBLED
    ]


def call_of(round: Round) -> str:
    return f"{round.number}.{round.attempt}"

from dataclasses import replace

from tests.support.turns import sealed, turn_of, voided
from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.charges import Charge, charges_of
from turnstream.domain.rounds import BilledTokens


def test_each_round_is_charged_once_by_number_and_attempt_and_an_assembled_answer_never() -> None:
    usage = {"input_tokens": 5}
    rounds = [
        replace(voided(1), usage=usage, model="fallback", cost=0.5),
        replace(sealed(1, attempt=2), usage={**usage, "output_tokens": 1}, estimated_tokens=9),
        sealed(2, attempt=2, stop_reason=ASSEMBLED),
    ]
    assert charges_of(rounds, turn_of()) == [
        Charge("round", "1.1", "fallback", BilledTokens(5), 0.5),
        Charge("round", "1.2", "model", BilledTokens(5, output=9), None),
    ]

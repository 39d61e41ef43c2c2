from typing import get_args

import pytest

from app.domain.errors import IllegalTransition
from app.domain.turns import TERMINAL, TRANSITIONS, Status, check_transition
from tests.support.turns import turn_of

STATUSES: tuple[Status, ...] = get_args(Status)
LEGAL = {
    ("queued", "running"),
    ("running", "queued"),
    ("running", "waiting"),
    ("waiting", "queued"),
    *((now, then) for now in ("queued", "running", "waiting") for then in ("complete", "cancelled", "error")),
}


@pytest.mark.parametrize("now", STATUSES)
@pytest.mark.parametrize("then", STATUSES)
def test_a_turn_goes_only_where_the_table_lets_it(now: Status, then: Status) -> None:
    if (now, then) in LEGAL:
        check_transition(now, then)
    else:
        with pytest.raises(IllegalTransition, match=f"a turn cannot go from {now} to {then}"):
            check_transition(now, then)


def test_the_table_knows_every_status() -> None:
    assert TRANSITIONS.keys() == set(STATUSES)


def test_terminal_states_have_no_way_out() -> None:
    assert {"complete", "cancelled", "error"} == TERMINAL


@pytest.mark.parametrize("status", STATUSES)
def test_a_turn_has_ended_in_a_terminal_state(status: Status) -> None:
    assert turn_of(status=status).ended == (status in TERMINAL)

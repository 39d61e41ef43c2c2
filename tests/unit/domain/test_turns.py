from typing import get_args

import pytest

from tests.support.turns import turn_of
from turnstream.domain.errors import IllegalTransition
from turnstream.domain.turns import ENDED, OPEN, TRANSITIONS, Status, TurnError, check_transition

STATUSES: tuple[Status, ...] = get_args(Status)
LEGAL = {
    ("queued", "running"),
    ("queued", "cancelled"),
    *(("running", then) for then in ("queued", "waiting", "complete", "cancelled", "error")),
    ("waiting", "queued"),
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


def test_ended_states_have_no_way_out() -> None:
    assert {"complete", "cancelled", "error"} == ENDED
    assert {"queued", "running", "waiting"} == OPEN


@pytest.mark.parametrize("status", STATUSES)
def test_a_turn_has_ended_in_an_ended_state(status: Status) -> None:
    assert turn_of(status=status).ended == (status in ENDED)


def test_the_wait_of_an_error_is_among_its_details() -> None:
    assert TurnError("rate_limit_error", "Later.", details={"retry_after": 7.5}).retry_after == 7.5
    assert TurnError("rate_limit_error", "Later.").retry_after is None


def test_an_error_has_the_wait_that_its_provider_asks_for() -> None:
    assert TurnError("overloaded_error", "Later.", details={"retry_after": 2.5}).wait == {"retry_after": 2.5}
    assert TurnError("api_error", "Broken.").wait == {}
